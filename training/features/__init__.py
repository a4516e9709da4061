"""The sheet of features: what each of them tells of future returns on training days."""
