"""Variants in calls of attention: from the value to the op's arguments, the formula in torch, and
gradients by it."""
