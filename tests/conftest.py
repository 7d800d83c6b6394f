"""Set-up shared by all tests."""

import torch
from hypothesis import settings

# The networks under test are tiny: threads slow them down, and test workers would compete for cores.
torch.set_num_threads(1)

# Examples that train or sample vary too much in time for a deadline; fixed examples keep runs repeatable.
settings.register_profile("dmliv", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("dmliv")
