"""What is made of the tokens before the new ones beside attention: the last few inputs, a sum over all."""
