"""What all packages share; the version, which `main` and the header of a run name, has its only home here."""

VERSION = "0.21.0"
