"""The options of a run: their types, defaults and descriptions, and reading them from YAML."""
