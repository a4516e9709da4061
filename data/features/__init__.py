"""What is known of stocks besides past returns: the nine features of a bar, and the features that agents read."""
