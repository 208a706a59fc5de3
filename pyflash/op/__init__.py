"""The torch ops in Python, and their registration with torch. Needs the compiled libraries."""
