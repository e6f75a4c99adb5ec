"""The AWS resources of each lane. The buffer stack creates them."""
