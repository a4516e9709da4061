"""What all packages share: the version, which `main` and the header of a run name, and the commits of earlier ones."""

VERSION = "0.26.0"
COMMITS = {
    "0.12.0": "ae6ed3d8",
    "0.13.0": "2709a034",
    "0.14.0": "81324326",
    "0.15.0": "8567300f",
    "0.16.0": "9a9e665e",
    "0.17.0": "a4b13b16",
    "0.19.0": "ca6d22ef",
}
"""Of versions whose runs or accounts this one refuses, a commit that reads them: tags are not in every copy."""


def checkout(version: str) -> str:
    """Return the command that brings an earlier version back."""
    return f"`git checkout {COMMITS[version]}` (version {version})"
