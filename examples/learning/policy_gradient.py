"""Policy gradient on CartPole: tasks play, the driver learns with Keras.

In each round the policy's weights go into the store once; tasks play whole episodes with them and return what they saw
and did. The driver makes actions that were followed by more steps than usual likelier (REINFORCE with a baseline). The
tasks compute the small policy with NumPy: only the driver needs TensorFlow.
"""

import cartpole
import numpy as np
import weft
from results import finish
from weft.util import weights

TASKS = 4
EPISODES = 4  # of a task in a round
ROUNDS = 60  # at most
DISCOUNT = 0.99
GOOD = 350  # mean steps of a round at which training ends
BAR = 195  # mean steps of 16 episodes after training; pushing at random gives 20


def likelihood(vector, seen):
    """The probability of a push to the right, for observations in rows: the network below in NumPy."""
    ends = np.cumsum([cartpole.OBSERVATIONS * 32, 32, 32])
    first, first_bias, second, second_bias = np.split(vector, ends)
    hidden = np.tanh(seen @ first.reshape(cartpole.OBSERVATIONS, 32) + first_bias)
    return 1 / (1 + np.exp(-(hidden @ second + second_bias[0])))


@weft.remote
def play(vector, seed, greedy=False):
    """Some episodes: what was seen, what was done, how many steps followed (discounted), and how long each was."""
    environment = cartpole.CartPole(seed)
    seen, actions, returns, lengths = [], [], [], []
    for _ in range(EPISODES):
        now, over = environment.reset(), False
        while not over:
            right = likelihood(vector, now)
            action = right > (0.5 if greedy else environment.random.random())
            seen.append(now)
            actions.append(action)
            now, over = environment.step(action)
        steps = environment.steps
        lengths.append(steps)
        returns.append((1 - DISCOUNT ** np.arange(steps, 0, -1)) / (1 - DISCOUNT))
    return np.array(seen), np.array(actions, np.float32), np.concatenate(returns).astype(np.float32), lengths


def main():
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    policy = keras.Sequential(
        [keras.Input([cartpole.OBSERVATIONS]), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.Adam(0.02)

    @tf.function(reduce_retracing=True)
    def learn(seen, actions, advantages):
        with tf.GradientTape() as tape:
            surprise = tf.nn.sigmoid_cross_entropy_with_logits(actions, policy(seen)[:, 0])
            loss = tf.reduce_mean(surprise * advantages)
        optimizer.apply_gradients(zip(tape.gradient(loss, policy.trainable_variables), policy.trainable_variables))

    own = weights(policy)
    means = []
    while len(means) < ROUNDS and (not means or means[-1] < GOOD):
        shared = weft.put(own.get_flat())
        seeds = range(len(means) * TASKS, (len(means) + 1) * TASKS)
        seen, actions, returns, lengths = zip(*weft.get([play.remote(shared, seed) for seed in seeds]))
        returns = np.concatenate(returns)
        advantages = (returns - returns.mean()) / (returns.std() + 1e-6)
        learn(*(tf.constant(each) for each in (np.concatenate(seen), np.concatenate(actions), advantages)))
        means.append(np.mean(lengths))
        print(f"round {len(means)}: {means[-1]:.0f} steps")
    tests = weft.get([play.remote(own.get_flat(), 10_000 + seed, greedy=True) for seed in range(TASKS)])
    return np.mean([lengths for *_, lengths in tests]), means


if __name__ == "__main__":
    with weft.init(num_cpus=2):
        reached, means = main()
    curves = {"mean of a round": means}
    finish("Policy gradient on CartPole: steps", reached, BAR, curves, x="round", y="steps until it falls")
