"""A model's lineage in the words of others: OpenLineage, CycloneDX, in-toto, Mermaid.

These modules know how records hang together and nothing of what an artifact means; whoever calls them says, through
small arguments, what is a model, which licences data have and which figures count.
"""
