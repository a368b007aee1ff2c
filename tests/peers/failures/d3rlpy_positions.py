"""d3rlpy: acting continues beyond the table of positions

After `max_timestep` steps (1,000 by default) every further step gets the last
position, without a warning. The training pass counts on and refuses what is
outside its table. Set `max_timestep` to the longest episode.
"""

import numpy as np
from d3rlpy.algos import DecisionTransformerConfig

config = DecisionTransformerConfig(context_size=4, max_timestep=10)
algorithm = config.create()
algorithm.create_impl((3,), 2)
actor = algorithm.as_stateful_wrapper(target_return=0.0)
for step in range(1, 13):
    actor.predict(np.ones(3, np.float32), 0.0)
print("step 12 of the episode acts as step", actor._timesteps[-1])
print("difference:", 12 - actor._timesteps[-1])
