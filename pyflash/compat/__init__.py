"""Functions of other attention libraries, by their names and in their order of arguments."""
