"""What a run would take, before anything is spent: by formula, and by the compiler of a TPU that is not here."""
