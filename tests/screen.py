"""What a terminal shows in the end of what is written to it."""

import re


def screen(written: str) -> list[str]:
    """Return the lines, without those at the end that are empty."""
    rows, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[AJK]|\r|\n|[^\r\n\x1b]+", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            rows += [""] * (row == len(rows))
        elif part == "\x1b[A":
            row -= 1
        elif part.startswith("\x1b"):
            rows[row:] = [rows[row][:column], *([] if part.endswith("J") else rows[row + 1 :])]
        else:
            rows[row] = rows[row][:column] + part + rows[row][column + len(part) :]
            column += len(part)
    return "\n".join(line.rstrip() for line in rows).rstrip().splitlines()
