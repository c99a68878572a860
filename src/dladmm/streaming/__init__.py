"""The practical method: least-squares steps for every use of a weight in a linear map, one mini-batch at a time."""
