"""The learning curve: the score by the number of labelled images."""
