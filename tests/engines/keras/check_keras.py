"""Two ranks on one backend: KERAS_BACKEND=... rueda run -np 2 python check_keras.py FOLDER PAGE."""

import copy
import os
import pickle
import re
import signal
import sys
import warnings
from pathlib import Path

import digits
import keras
import numpy as np
import rueda
import rueda.keras
from rueda.keras.tracing import TracedStep

BACKEND = keras.backend.backend()
STEPS, BATCH = 6, 16
rueda.init()
assert rueda.size() == 2
MINE = slice(rueda.rank(), None, 2)


def model_of(seed, units=8, **options):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(units, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(loss="mse", **options)
    return model


def samples():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(STEPS * BATCH, 4)).astype("float32")
    return x, x.sum(1, keepdims=True) ** 2


def weights_of(model):
    return np.concatenate([keras.ops.convert_to_numpy(w).ravel() for w in model.trainable_weights])


def same_everywhere(values):
    everyone = rueda.allgather_object(np.asarray(values))
    return all(np.array_equal(other, everyone[0]) for other in everyone)


def raised(action):
    """Returns the full error text: JAX and TensorFlow wrap errors in their own."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


def check_two_ranks_train_as_one():
    x, y = samples()
    fit = {"epochs": 3, "shuffle": False, "verbose": 0}

    def optimizer():
        return keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5)

    whole = model_of(0, optimizer=optimizer())
    expected = whole.fit(x, y, batch_size=BATCH, **fit).history["loss"]
    model = model_of(rueda.rank(), optimizer=rueda.keras.DistributedOptimizer(optimizer()))
    callbacks = [rueda.keras.BroadcastCallback(), rueda.keras.MetricAverageCallback()]
    found = model.fit(x[MINE], y[MINE], batch_size=BATCH // 2, callbacks=callbacks, **fit)
    assert same_everywhere(weights_of(model))
    difference = np.abs(weights_of(model) - weights_of(whole)).max()
    assert difference <= 1e-6, difference
    np.testing.assert_allclose(found.history["loss"], expected, rtol=1e-5)
    print("difference", difference)


def check_digits_are_trained_as_by_one_process():
    images, labels = digits.samples()

    def accuracy_after(rank, size, optimizer, callbacks=()):
        keras.utils.set_random_seed(rank)
        layers = [keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input((64,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, optimizer=optimizer)
        fit = {"batch_size": 32 // size, "epochs": 5, "shuffle": False, "verbose": 0}
        mine = slice(rank, digits.TRAINED, size)
        model.fit(images[mine], labels[mine], callbacks=list(callbacks), **fit)
        return digits.right(model.predict(images[digits.TRAINED :], verbose=0).argmax(1))

    one = accuracy_after(0, 1, keras.optimizers.Adam(5e-3))
    ours = rueda.keras.DistributedOptimizer(keras.optimizers.Adam(5e-3))
    two = accuracy_after(rueda.rank(), 2, ours, [rueda.keras.BroadcastCallback()])
    digits.require_as_good(two, one)
    assert same_everywhere(two)


def check_optimizers_that_only_one_rank_makes_change_no_names():
    """Such as those of a model that rank 0 alone has loaded."""
    distributed = rueda.keras.DistributedOptimizer(keras.optimizers.SGD())
    if rueda.rank() == 0:
        keras.optimizers.SGD()
        keras.optimizers.Adam()
        try:
            rueda.keras.DistributedOptimizer(distributed)
            raise AssertionError("it was distributed twice")
        except rueda.InvalidArgumentError:
            pass  # and uses up no name
    x, y = samples()
    names = []
    for plain in (keras.optimizers.SGD(0.05), keras.optimizers.Adam(), keras.optimizers.SGD(0.05)):
        model = model_of(0, optimizer=rueda.keras.DistributedOptimizer(plain))
        model.fit(x[MINE], y[MINE], batch_size=BATCH // 2, verbose=0)
        assert same_everywhere(weights_of(model))
        names.append(vars(plain)["_rueda_reduction"].label)
    assert len(set(names)) == 3, names
    named = keras.optimizers.SGD(name="of the program")
    rueda.keras.DistributedOptimizer(named)
    assert vars(named)["_rueda_reduction"].label == "keras.of the program"


def warned_of(model, *callbacks):
    """Returns how often training warned that the optimizer is not distributed."""
    x, y = samples()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x[MINE], y[MINE], batch_size=BATCH // 2, callbacks=list(callbacks), verbose=0)
    return sum("is not distributed" in str(each.message) for each in caught)


def check_a_plain_optimizer_is_warned_of():
    callbacks = [rueda.keras.BroadcastCallback, rueda.keras.MetricAverageCallback]
    callbacks += [rueda.keras.JoinCallback]
    for each in callbacks:
        model = model_of(0, optimizer=keras.optimizers.SGD(0.01))
        assert warned_of(model, each()) == 1
        assert warned_of(model, each()) == 0  # once for a model
    model = model_of(0, optimizer=keras.optimizers.SGD(0.01))
    assert warned_of(model, *(each() for each in callbacks)) == 1
    alone = [rueda.add_process_set([rank]) for rank in range(2)]
    model = model_of(0, optimizer=keras.optimizers.SGD(0.01))
    assert warned_of(model, rueda.keras.MetricAverageCallback(alone[rueda.rank()])) == 0
    for each in alone:
        rueda.remove_process_set(each)


def check_copies_of_what_is_distributed_are_warned_of():
    model = model_of(0, optimizer=rueda.keras.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    assert warned_of(model, rueda.keras.BroadcastCallback()) == 0
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))
    scaled = model_of(0, optimizer=rueda.keras.DistributedOptimizer(scaling))
    assert warned_of(scaled, rueda.keras.BroadcastCallback()) == 0
    optimizer = model.optimizer
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    copies += [
        model_of(0, optimizer=each)
        for each in (
            copy.deepcopy(optimizer),
            type(optimizer).from_config(optimizer.get_config()),
            copy.deepcopy(scaling),
        )
    ]
    for number, each in enumerate(copies):
        assert warned_of(each, rueda.keras.BroadcastCallback()) == 1, number
    again = copies[0]
    again.compile(optimizer=rueda.keras.DistributedOptimizer(again.optimizer), loss="mse")
    assert warned_of(again, rueda.keras.BroadcastCallback()) == 0
    assert same_everywhere(weights_of(again))


def check_metrics_that_are_not_finite_or_large():
    inf, largest = float("inf"), sys.float_info.max
    cases = [
        (inf, -inf, float("nan")),
        (inf, 1.0, inf),
        (-inf, 1.0, -inf),
        (float("nan"), 1.0, float("nan")),
        (largest, largest, largest),
        (-largest, largest, 0.0),
        (0.5, 0.25, 0.375),
    ]
    for here, there, expected in cases:
        logs = {"metric": there if rueda.rank() else here}
        rueda.keras.MetricAverageCallback().on_epoch_end(0, logs)
        np.testing.assert_equal(logs["metric"], expected)


def check_ranks_with_fewer_batches_join():
    """Each epoch has three steps of both ranks, then three of rank 0, and both get its weights."""
    x, y = samples()

    def optimizer():
        return keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5)

    whole = model_of(0, optimizer=optimizer())
    for step in [*range(STEPS)] * 2:
        chosen = slice(step * BATCH, (step + 1) * BATCH, 1 if step < STEPS // 2 else 2)
        whole.train_on_batch(x[chosen], y[chosen])
    model = model_of(rueda.rank(), optimizer=rueda.keras.DistributedOptimizer(optimizer()))
    callbacks = [
        rueda.keras.BroadcastCallback(),
        rueda.keras.JoinCallback(),
        rueda.keras.MetricAverageCallback(),
    ]
    rows = BATCH // 2 * (STEPS if rueda.rank() == 0 else STEPS // 2)
    fit = {"batch_size": BATCH // 2, "epochs": 2, "shuffle": False, "verbose": 0}
    model.fit(x[MINE][:rows], y[MINE][:rows], callbacks=callbacks, **fit)
    assert same_everywhere(weights_of(model))
    difference = np.abs(weights_of(model) - weights_of(whole)).max()
    assert difference <= 1e-6, difference


def check_they_join_within_an_execution_and_before_validation():
    x, y = samples()
    optimizer = rueda.keras.DistributedOptimizer(keras.optimizers.SGD(0.05))
    steps = 1 if BACKEND == "torch" else 4  # which supports no more
    model = model_of(0, optimizer=optimizer, steps_per_execution=steps)
    rows = BATCH // 2 * (4 - rueda.rank())
    fit = {"batch_size": BATCH // 2, "epochs": 2, "shuffle": False, "verbose": 0}
    history = model.fit(
        *(x[MINE][:rows], y[MINE][:rows]),
        **fit,
        validation_data=(x, y),
        callbacks=[rueda.keras.JoinCallback()],
    ).history
    assert same_everywhere(weights_of(model))
    assert same_everywhere(history["val_loss"])


def check_what_ranks_join_with_becomes_the_same():
    """Also for a last batch of rank 0 alone that is only accumulated or that loss scaling skips."""
    x, y = samples()
    rows = BATCH // 2 * (3 - rueda.rank())
    x, y = x[MINE][:rows], y[MINE][:rows]
    optimizers = keras.optimizers
    accumulating = optimizers.SGD(0.05, gradient_accumulation_steps=2)
    scaling = optimizers.LossScaleOptimizer(optimizers.SGD(0.01), initial_scale=8.0)
    for plain in (accumulating, scaling):
        model = model_of(0, optimizer=rueda.keras.DistributedOptimizer(plain))
        if plain is scaling and rueda.rank() == 0:
            y[-BATCH // 2 :] = 3e38  # the scale makes it infinite
        fit = {"batch_size": BATCH // 2, "shuffle": False, "verbose": 0}
        model.fit(x, y, callbacks=[rueda.keras.JoinCallback()], **fit)
        for variable in [*model.weights, *model.optimizer.variables]:
            value = keras.ops.convert_to_numpy(variable)
            assert np.isfinite(value).all(), variable.path
            assert same_everywhere(value), variable.path


def check_many_parameters():
    """A million parameters, too many for small buffers."""
    optimizer = rueda.keras.DistributedOptimizer(keras.optimizers.Adam())
    model = model_of(0, units=200_000, optimizer=optimizer)
    x, y = samples()
    model.fit(x[MINE], y[MINE], batch_size=BATCH // 2, verbose=0)
    assert same_everywhere(weights_of(model))


def check_an_overflow_on_one_rank_skips_the_step_on_all():
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=8.0)
    model = model_of(0, optimizer=rueda.keras.DistributedOptimizer(scaling))
    before = weights_of(model)
    x, y = samples()
    x, y = x[MINE][: BATCH // 2], y[MINE][: BATCH // 2].copy()
    finite = y.copy()
    if rueda.rank() == 1:
        y[:] = 3e38  # the scale makes it infinite
    model.fit(x, y, verbose=0)
    assert np.array_equal(weights_of(model), before)
    assert (
        float(scaling.dynamic_scale.numpy() if BACKEND == "torch" else scaling.dynamic_scale) == 4
    )
    model.fit(x, finite, verbose=0)
    assert np.isfinite(weights_of(model)).all()
    assert not np.array_equal(weights_of(model), before)
    assert same_everywhere(weights_of(model))


def check_loss_scaling_the_wrong_way_round_is_refused():
    optimizer = rueda.keras.DistributedOptimizer(keras.optimizers.SGD())
    model = model_of(0, optimizer=keras.optimizers.LossScaleOptimizer(optimizer))
    x, y = samples()
    text = raised(lambda: model.fit(x, y, verbose=0))
    assert "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))" in text, text


def apply_as_trainers_do(optimizer, gradients, variables):
    if not optimizer.built:
        optimizer.build(variables)
    if BACKEND == "torch":
        import torch

        optimizer.apply([g if g is None else torch.tensor(g) for g in gradients], variables)
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        there = [index for index, g in enumerate(gradients) if g is not None]

        @tf.function
        def step(*given):
            passed = iter(given)
            optimizer.apply([next(passed) if i in there else None for i in range(3)], variables)

        step(*[tf.constant(gradients[index]) for index in there])
    else:
        import jax

        # A new function, so that each call is traced.
        step = jax.jit(lambda *state: optimizer.stateless_apply(*state))
        values, _ = step(
            [v.value for v in optimizer.variables], gradients, [v.value for v in variables]
        )
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def check_a_gradient_that_one_rank_lacks_counts_as_zeros():
    variables = [keras.Variable(np.ones(3, "float32"), name=f"v{i}") for i in range(3)]
    optimizer = rueda.keras.DistributedOptimizer(keras.optimizers.SGD(1.0, weight_decay=0.5))
    gradient = np.full(3, 2.0 * (1 + rueda.rank()), "float32")
    only_here = np.full(3, 4.0, "float32") if rueda.rank() == 0 else None
    apply_as_trainers_do(optimizer, [gradient, only_here, None], variables)
    values = [float(keras.ops.convert_to_numpy(v)[0]) for v in variables]
    # A variable without a gradient on any rank does not decay either.
    assert values == [0.5 - 3, 0.5 - 2, 1], values


def check_a_gradient_that_comes_up_later():
    def ones():
        return [keras.Variable(np.ones(3, "float32"), name=f"w{i}") for i in range(3)]

    def values(variables):
        return [float(keras.ops.convert_to_numpy(v)[0]) for v in variables]

    variables, gradient = ones(), np.full(3, 1.0 + rueda.rank(), "float32")
    optimizer = rueda.keras.DistributedOptimizer(keras.optimizers.SGD(1.0, name="later"))
    apply_as_trainers_do(optimizer, [gradient, None, None], variables)
    apply_as_trainers_do(optimizer, [gradient, gradient, None], variables)  # traced anew
    assert values(variables) == [1 - 3, 1 - 1.5, 1]
    if BACKEND == "jax":
        return  # all its steps are compiled

    # Eager optimizers agree in each step.
    variables = ones()
    optimizer = rueda.keras.DistributedOptimizer(keras.optimizers.SGD(1.0, name="at once"))
    for only_here in (None, gradient if rueda.rank() == 1 else None):
        given = [gradient, only_here, None]
        given = [g if g is None else keras.ops.convert_to_tensor(g) for g in given]
        optimizer.apply(iter(given), iter(variables))
    assert values(variables) == [1 - 3, 1 - 1, 1]


def check_a_rank_that_traces_its_step_in_a_later_world():
    """Like a rank that joins an elastic job, whose other ranks have traced their steps before."""

    def new_model(seed):
        optimizer = keras.optimizers.SGD(0.05, name="elastic")
        return model_of(seed, optimizer=rueda.keras.DistributedOptimizer(optimizer))

    x, y = samples()
    model = new_model(0)
    model.fit(x[MINE], y[MINE], verbose=0)
    weights = model.get_weights()
    # Traces two optimizers in one function, one after the other, before either step runs; one of
    # them twice.
    names = ["one", "two"]

    def trace():
        steps = []
        for name in names:
            steps.append(TracedStep(lambda name=name: rueda.allgather_object(name, name)))
            steps[0].follow_world()
        return steps

    steps = trace()
    for step in steps:
        step.begin()
    rueda.shutdown()
    rueda.init()
    if rueda.rank() == 1:
        model = new_model(1)
        model.set_weights(weights)
        steps = trace()
    for name, step in zip(names, steps, strict=True):
        step.begin()
        rueda.allgather_object(None, f"{name} runs")
    model.fit(x[MINE], y[MINE], verbose=0)
    assert same_everywhere(weights_of(model))


def check_what_is_saved_is_the_plain_optimizer():
    plain = keras.optimizers.Adam(0.01, clipnorm=1.0)
    config = plain.get_config()
    model = model_of(0, optimizer=rueda.keras.DistributedOptimizer(plain))
    x, y = samples()
    model.fit(x[MINE], y[MINE], verbose=0)
    path = os.path.join(sys.argv[1], f"{BACKEND}-{rueda.rank()}.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is type(plain)
    assert loaded.optimizer.get_config() == config
    assert "apply" not in vars(loaded.optimizer)
    for one, two in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        here, there = keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two)
        assert np.array_equal(here, there)
    loaded.compile(optimizer=rueda.keras.DistributedOptimizer(loaded.optimizer), loss="mse")
    for each in (model, loaded):
        each.fit(x[MINE], y[MINE], shuffle=False, verbose=0)
    assert same_everywhere(weights_of(loaded))
    assert np.array_equal(weights_of(loaded), weights_of(model))


def check_the_rate_warms_up():
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if BACKEND == "jax":
                self.model.jax_state_sync()
            seen.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))

    model = model_of(0, optimizer=rueda.keras.DistributedOptimizer(keras.optimizers.SGD(0.4)))
    x, y = samples()
    warmup = rueda.keras.LearningRateWarmupCallback(0.4, warmup_epochs=2)
    callbacks = [warmup, Watch()]
    fit = {"batch_size": BATCH // 2, "epochs": 3, "verbose": 0}
    model.fit(x[MINE], y[MINE], callbacks=callbacks, **fit)
    expected = [0.2 + 0.2 * min(step / (2 * STEPS), 1) for step in range(3 * STEPS)]
    np.testing.assert_allclose(seen, expected, rtol=1e-6)
    # Training that resumes after the warm-up keeps its learning rate.
    seen.clear()
    model.optimizer.learning_rate = 0.01
    model.fit(x[MINE], y[MINE], callbacks=callbacks, **{**fit, "initial_epoch": 3, "epochs": 4})
    np.testing.assert_allclose(seen, [0.01] * STEPS, rtol=1e-6)


def check_what_is_no_plain_optimizer_is_refused():
    optimizer = rueda.keras.DistributedOptimizer(keras.optimizers.SGD())
    assert "distributed already" in raised(lambda: rueda.keras.DistributedOptimizer(optimizer))
    assert "not a str" in raised(lambda: rueda.keras.DistributedOptimizer("sgd"))


def check_tensorflow_with_jit_compile_is_refused():
    if BACKEND != "tensorflow":
        return
    optimizer = rueda.keras.DistributedOptimizer(keras.optimizers.SGD())
    model = model_of(0, optimizer=optimizer, jit_compile=True)
    x, y = samples()
    text = raised(lambda: model.fit(x, y, verbose=0))
    assert "model.compile(..., jit_compile=False)" in text, text


def check_the_tape_of_tensorflow():
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    table, unused = tf.Variable(tf.ones([4, 2])), tf.Variable(1.0)

    def gradients(name, row, weight):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [row]))
            if weight:
                loss += unused * weight
        tape = rueda.keras.DistributedGradientTape(tape, name)
        return tape.gradient(loss, {"table": table, "unused": unused})

    for run in (gradients, tf.function(gradients)):
        found = run("rows", rueda.rank(), 0)
        assert found["unused"] is None
        assert found["table"].numpy().tolist() == [[0.5, 0.5], [0.5, 0.5], [0, 0], [0, 0]]
        text = raised(lambda run=run: run("parts", 0, rueda.rank()))
        assert "exists on rank 1 and was None on rank 0" in text, text


def check_the_example_of_the_page():
    page = Path(sys.argv[2]).read_text()
    example = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    names = {}
    exec(example, names)
    losses = names["history"].history["loss"]
    assert losses[-1] < losses[0]
    assert same_everywhere(losses)
    assert same_everywhere(weights_of(names["model"]))


def check_models_that_differ_are_named_on_every_rank():
    optimizer = rueda.keras.DistributedOptimizer(keras.optimizers.SGD())
    model = model_of(0, units=8 + rueda.rank(), optimizer=optimizer)
    x, y = samples()
    broadcast = [rueda.keras.BroadcastCallback()]
    for callbacks in (broadcast, []):
        text = raised(lambda c=callbacks: model.fit(x[MINE], y[MINE], callbacks=c, verbose=0))
        for part in ("float32[4, 8] on rank 0", "float32[4, 9] on rank 1", "the models differ"):
            assert part in text, text
    model.layers[-1].trainable = rueda.rank() == 0
    assert rueda.allreduce(np.ones(1), op=rueda.Sum, name="goes on")[0] == 2


class EndAfterTwo(keras.callbacks.Callback):
    """Calls the function after two batches."""

    def __init__(self, end):
        super().__init__()
        self.end = end

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.end()


def told_when_rank_1_ends(end):
    """Returns what training raises on rank 0 when rank 1 ends in the middle of it."""
    model = model_of(0, optimizer=rueda.keras.DistributedOptimizer(keras.optimizers.SGD()))
    x, y = samples()
    callbacks = [EndAfterTwo(end)] if rueda.rank() == 1 else []
    fit = {"batch_size": BATCH // 2, "callbacks": callbacks, "verbose": 0}
    if rueda.rank() == 1:
        model.fit(x[MINE][:BATCH], y[MINE][:BATCH], **fit)
        return None
    return raised(lambda: model.fit(x[MINE], y[MINE], **fit))


def check_a_rank_with_fewer_batches_that_leaves_is_told():
    """The other rank gets an error and does not wait."""
    text = told_when_rank_1_ends(rueda.shutdown)
    if text:
        assert "rank 1 has shut down" in text, text
        rueda.shutdown()
    rueda.init()
    assert rueda.allreduce(np.ones(1), op=rueda.Sum, name="another world")[0] == 2


def check_an_exception_of_one_rank_reaches_the_other():
    """The error has its text and its rank, and comes from a block of rueda.world()."""
    address = rueda.broadcast_object(rueda.rendezvous.open(2) if rueda.rank() == 0 else None)
    rank = rueda.rank()
    rueda.shutdown()

    def fails():
        raise ValueError("a bad row in the data")

    def train():
        with rueda.world(rank, 2, address):
            return told_when_rank_1_ends(fails)

    text = raised(train) if rank == 1 else train()
    assert "a bad row in the data" in text, text
    if rank == 0:
        assert re.search(r"rank 1\b.*ValueError: a bad row in the data", text, re.DOTALL), text
    rueda.init()
    assert rueda.allreduce(np.ones(1), op=rueda.Sum, name="yet another world")[0] == 2


def check_a_rank_that_is_killed_is_told():
    """Runs last: rank 1 is gone afterwards."""

    def dies():
        print("ok check_a_rank_that_is_killed_is_told", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    text = told_when_rank_1_ends(dies)
    assert re.search(r"rank 1 \(.*is gone", text), text


for check_name, check in list(globals().items()):
    if check_name.startswith("check_") and callable(check):
        check()
        print("ok", check_name, flush=True)
rueda.shutdown()
