"""The torch ops: their Python face and what torch sees of them. Needs the compiled libraries."""
