"""CORE (DCLM, Li et al. 2024): in-context tasks for base models, scored by log-probability and centred on chance."""
