"""What is inside a kernel, and whether what is said of it is true."""
