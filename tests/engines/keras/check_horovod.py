"""Horovod's names for TensorFlow and Keras, on two ranks.

    rueda run -np 2 python check_horovod.py FOLDER SIGNATURES

On a Keras backend other than TensorFlow, only checks what exists for it.
"""

import ast
import importlib
import inspect
import os
import sys
from pathlib import Path

import numpy as np
import rueda.horovod.alias

rueda.horovod.alias.install()

import horovod.keras as hvd_keras  # noqa: E402
import horovod.tensorflow as hvd  # noqa: E402
import horovod.tensorflow.keras as hvd_tf_keras  # noqa: E402
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

BACKEND = keras.backend.backend()
hvd.init()
assert hvd.size() == 2
RANK = hvd.rank()


def tensorflow_only(check):
    return check if BACKEND == "tensorflow" else lambda: None


def raised(kind, action):
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind} was raised")


def each_way(action):
    """Returns the action both eager and compiled."""
    return action, tf.function(action)


def same_everywhere(values):
    everyone = hvd.allgather_object(np.asarray(values))
    return all(np.array_equal(other, everyone[0]) for other in everyone)


def weights_of(model):
    return np.concatenate([keras.ops.convert_to_numpy(w).ravel() for w in model.trainable_weights])


def model_of(optimizer, seed=0):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(loss="mse", optimizer=optimizer)
    return model


def samples():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(64, 4)).astype("float32")
    return x, x.sum(1, keepdims=True) ** 2


MINE = slice(RANK, None, 2)


def check_signatures():
    module = None
    for line in Path(sys.argv[2]).read_text().splitlines():
        if line.startswith("## "):
            module = importlib.import_module(f"rueda.horovod.{line[3:]}")
        elif line and not line.startswith("#"):
            name = line.partition("(")[0]
            has = inspect.signature(getattr(module, name)).parameters.values()
            wanted = ast.parse(f"def _{line[len(name) :]}: pass").body[0].args
            names = [each.arg for each in wanted.args]
            names += [wanted.kwarg.arg] if wanted.kwarg else []
            assert [each.name for each in has] == names, line
            defaults = [each.default for each in has if each.default is not inspect.Parameter.empty]
            for node, default in zip(wanted.defaults, defaults, strict=True):
                if isinstance(node, ast.Constant):
                    assert default == node.value, line
                else:
                    found = hvd
                    for part in ast.unparse(node).split("."):
                        found = getattr(found, part)
                    assert default is found, line


@tensorflow_only
def check_operations():
    for number, way in enumerate(("eager", "compiled")):

        def both(action, number=number):
            return each_way(action)[number]

        x = tf.constant([[1.0, 2.0], [3.0, 4.0]]) * (RANK + 1)
        reduce = both(lambda x, way=way: hvd.allreduce(x, name=f"reduce {way}"))
        assert reduce(x).numpy().tolist() == [[1.5, 3], [4.5, 6]]
        whole = both(lambda x: hvd.allreduce(x))(tf.constant([-2 - RANK, 2 + RANK]))
        assert whole.numpy().tolist() == [-2, 2]  # rounded towards zero
        mixed = both(lambda x, y, way=way: hvd.grouped_allreduce([x, y], name=f"mixed {way}"))
        whole, others = mixed(tf.constant([-2 - RANK, 2 + RANK]), x)
        assert whole.numpy().tolist() == [-2, 2]
        assert others.numpy().tolist() == [[1.5, 3], [4.5, 6]]
        half = both(lambda x: hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16))(x)
        assert half.dtype == tf.float32
        assert half.numpy().tolist() == [[3, 6], [9, 12]]
        rows = both(hvd.allgather)(x[: RANK + 1])
        assert rows.numpy().tolist() == [[1, 2], [2, 4], [6, 8]]
        root = both(lambda x: hvd.broadcast(x, 1))(x)
        assert root.numpy().tolist() == [[2, 4], [6, 8]]
        sent, counts = both(lambda x: hvd.alltoall(x, splits=[RANK, 2 - RANK]))(x)
        assert counts.numpy().tolist() == [[0, 1], [2, 1]][RANK]
        assert sent.numpy().tolist() == [[[2, 4]], [[1, 2], [3, 4], [6, 8]]][RANK]
        part = both(lambda x: hvd.reducescatter(x, op=hvd.Sum))(x)
        assert part.numpy().tolist() == [[[3, 6]], [[9, 12]]][RANK]
        one, two = both(lambda x: hvd.grouped_allreduce([x, x * 2], op=hvd.Max))(x)
        assert (one.numpy() * 2).tolist() == two.numpy().tolist() == [[4, 8], [12, 16]]
        slices = tf.IndexedSlices(x, tf.constant([0, 1]), tf.constant([2, 2]))
        reduce = both(lambda x, s=slices: hvd.grouped_allreduce([x, s], prescale_factor=2.0))
        assert "dense tensors" in raised(NotImplementedError, lambda r=reduce, x=x: r(x))
        assert int(both(hvd.size_op)()) == 2
        assert int(both(hvd.rank_op)()) == RANK
        assert int(both(lambda: hvd.process_set_included_op(17))()) == -2


@tensorflow_only
def check_gradients_of_operations():
    x = tf.Variable([[1.0, 2.0]])
    operations = {
        "allreduce": (lambda x: hvd.allreduce(x * (RANK + 1)), 1.5 * (RANK + 1)),
        "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), 3.0),
        "allgather": (lambda x: hvd.allgather(x), 1.5),
        "broadcast": (lambda x: hvd.broadcast(x, 0), 1.5 * (RANK == 0)),
        "alltoall": (lambda x: hvd.alltoall(x, splits=[1, 0])[0], 1.0),
        "reducescatter": (lambda x: hvd.reducescatter(tf.concat([x, x], 0)), 3.0),
    }
    for operation, expected in operations.values():

        def gradient(operation=operation):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(operation(x)) * (RANK + 1)
            return tape.gradient(loss, x)

        for way in each_way(gradient):
            assert way().numpy().tolist() == [[expected, expected]], (operation, way())


@tensorflow_only
def check_errors_are_of_both_kinds():
    def differing(x):
        return hvd.allreduce(x, name="differing")

    given = tf.ones(3 + RANK)
    for kind in (hvd.HorovodInternalError, tf.errors.FailedPreconditionError):
        text = raised(kind, lambda: differing(given))
        assert "shape differs between ranks: [3] on rank 0, [4] on rank 1" in text, text
    compiled = tf.function(differing)
    text = raised(tf.errors.InvalidArgumentError, lambda: compiled(given))
    assert "shape differs between ranks: [3] on rank 0, [4] on rank 1" in text, text
    text = raised(tf.errors.InvalidArgumentError, lambda: hvd.broadcast(given, 9))
    assert "9" in text, text
    with tf.Graph().as_default():
        text = raised(NotImplementedError, lambda: hvd.allreduce(tf.ones(2)))
    assert "tf.function" in text
    assert "PyTorch only" in raised(
        NotImplementedError, lambda: hvd.allreduce(given, op=hvd.Adasum)
    )


@tensorflow_only
def check_tapes():
    layer = keras.layers.Dense(2, use_bias=False, kernel_initializer="ones")
    layer.build((None, 3))
    table = tf.Variable(tf.ones([4, 2]))

    def gradients(wrap, sparse):
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [RANK, 3])
            loss = tf.reduce_sum(rows) + tf.reduce_sum(layer(tf.fill([1, 3], RANK + 1.0)))
        return wrap(tape, sparse_as_dense=not sparse).gradient(loss, [table, layer.kernel])

    for sparse in (False, True):
        for wrap, kernel in (
            (hvd.DistributedGradientTape, 1.5),
            (lambda t, **o: hvd.PartialDistributedGradientTape(t, local_layers=layer, **o), None),
        ):
            for way in each_way(lambda wrap=wrap, sparse=sparse: gradients(wrap, sparse)):
                of_table, of_kernel = way()
                assert isinstance(of_table, tf.IndexedSlices) == sparse
                dense = tf.convert_to_tensor(of_table).numpy()[:, 0]
                assert dense.tolist() == [0.5, 0.5, 0, 1]
                wanted = kernel or (RANK + 1) / 2  # a local one is divided by the number of ranks
                assert np.allclose(of_kernel, wanted)


@tensorflow_only
def check_sparse_gradients_of_local_layers():
    """They stay sparse when scaled: the tables of local embeddings may be large."""
    table = keras.layers.Embedding(4, 2, embeddings_initializer="ones")
    table.build((None,))

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(table(tf.constant([RANK, 3])))
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=table)
        return tape.gradient(loss, table.trainable_weights)

    for way in each_way(gradients):
        (found,) = way()
        assert isinstance(found, tf.IndexedSlices)
        assert found.indices.numpy().tolist() == [RANK, 3]
        assert found.values.numpy().tolist() == [[0.5, 0.5]] * 2


def check_two_ranks_train_as_one():
    x, y = samples()
    fit = {"epochs": 2, "shuffle": False, "verbose": 0}
    whole = model_of(keras.optimizers.SGD(0.05, momentum=0.9))
    whole.fit(x, y, batch_size=16, **fit)
    # Gradients are not clipped here, so rounding differences grow more than elsewhere.
    options = {
        "plain": ({}, 1e-5),
        "fp16": ({"compression": hvd.Compression.fp16}, 1e-2),
        "predivided": ({"gradient_predivide_factor": 4.0}, 1e-5),
    }
    for name, (option, bound) in options.items():
        optimizer = hvd_tf_keras.DistributedOptimizer(
            keras.optimizers.SGD(0.05, momentum=0.9), name=name, **option
        )
        model = model_of(optimizer, seed=RANK)
        callbacks = [hvd_tf_keras.callbacks.BroadcastGlobalVariablesCallback(0)]
        model.fit(x[MINE], y[MINE], batch_size=8, callbacks=callbacks, **fit)
        assert same_everywhere(weights_of(model))
        difference = np.abs(weights_of(model) - weights_of(whole)).max()
        assert difference <= bound, (name, difference)


def check_passes_are_accumulated():
    x, y = samples()
    for average in (False, True):
        rate = 0.01 if average else 0.01 / 2
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(rate),
            name=f"passes {average}",
            backward_passes_per_step=2,
            average_aggregated_gradients=average,
        )
        model = model_of(optimizer)
        model.fit(x[MINE], y[MINE], batch_size=8, shuffle=False, verbose=0)
        whole = model_of(keras.optimizers.SGD(0.01))
        whole.fit(x, y, batch_size=32, shuffle=False, verbose=0)
        assert np.abs(weights_of(model) - weights_of(whole)).max() <= 1e-6
    text = raised(ValueError, lambda: hvd.DistributedOptimizer(optimizer, op=hvd.Max))
    assert "Average and Sum" in text
    used = keras.optimizers.SGD()
    used.build(model.trainable_variables)
    text = raised(ValueError, lambda: hvd.DistributedOptimizer(used, backward_passes_per_step=2))
    assert "gradient_accumulation_steps=2" in text


def check_local_layers_stay_local():
    model = model_of(None)
    local, shared = model.layers
    optimizer = hvd_keras.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.05), local_layers=local
    )
    model.compile(loss="mse", optimizer=optimizer)
    x, y = samples()
    model.fit(x[MINE], y[MINE], verbose=0)
    assert same_everywhere(shared.kernel)
    assert not same_everywhere(local.kernel)


def check_callbacks():
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if BACKEND == "jax":
                self.model.jax_state_sync()
            seen.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))

    names = hvd_tf_keras.callbacks
    model = model_of(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.4)))
    callbacks = [
        names.MetricAverageCallback(),
        names.LearningRateWarmupCallback(0.4, warmup_epochs=2),
        names.LearningRateScheduleCallback(0.4, 0.5, start_epoch=2),
        Watch(),
    ]
    x, y = samples()
    history = model.fit(x[MINE], y[MINE], epochs=4, callbacks=callbacks, verbose=0)
    np.testing.assert_allclose(seen, [0.3, 0.4, 0.4, 0.2], rtol=1e-6)
    assert same_everywhere(history.history["loss"])
    assert same_everywhere(history.history["lr"])


def check_a_loaded_model_is_distributed():
    class Mine(keras.optimizers.SGD):
        pass

    model = model_of(hvd_keras.DistributedOptimizer(Mine(0.05)))
    x, y = samples()
    model.fit(x[MINE], y[MINE], verbose=0)
    path = os.path.join(sys.argv[1], f"{BACKEND}-{RANK}.keras")
    model.save(path)
    loaded = hvd_keras.load_model(path, custom_optimizers=[Mine])
    assert type(loaded.optimizer) is Mine
    loaded.fit(x[MINE], y[MINE], verbose=0)
    assert same_everywhere(weights_of(loaded))


@tensorflow_only
def check_batches_are_normalised_together():
    x = tf.constant(np.random.default_rng(3).normal(size=(8, 3)), tf.float32)
    together, alone = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    expected = alone(x, training=True)
    mine = together(x[MINE], training=True)
    np.testing.assert_allclose(mine, expected[MINE], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together.moving_variance, alone.moving_variance, rtol=1e-5)


@tensorflow_only
def check_elastic_training_begins_anew():
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), seed=RANK)
    model.seed = keras.random.SeedGenerator(RANK)
    x, y = samples()
    failed = []
    step = tf.function(lambda x: hvd.allreduce(x, name="of a step"))

    @hvd.elastic.run
    def train(state):
        same = same_everywhere(weights_of(state.model))
        if len(failed) < 2:
            failed.append(True)
            state.model.fit(x[MINE], y[MINE], verbose=0)
            state.model.layers[0].kernel.assign(np.full((4, 8), 9.0))
            if RANK == 1:
                hvd.shutdown()
                raise hvd.HorovodInternalError("as if a rank had been lost")
            # The other rank has left.
            if len(failed) == 1:
                step(tf.ones(2))
            else:
                state.model.fit(x[MINE], y[MINE], verbose=0)
        return same, state.epoch, float(step(tf.ones(2))[0])

    state = hvd_tf_keras.elastic.KerasState(model, epoch=5 + RANK)
    assert train(state) == (True, 5, 1.0)
    assert len(failed) == 2
    assert float(model.layers[0].kernel[0, 0]) != 9.0
    assert model.seed.state.numpy().tolist() == [RANK, 0]  # each rank's own seed generator


def check_objects():
    assert hvd.broadcast_object({"rank": RANK}, root_rank=1) == {"rank": 1}
    assert hvd.broadcast_object_fn(1)(RANK) == 1
    assert hvd.allgather_object(RANK) == [0, 1]
    assert "eager" in raised(RuntimeError, lambda: hvd.broadcast_global_variables(0))
    assert hvd_keras.allreduce([1.0 + RANK]).numpy().tolist() == [1.5]
    assert hvd_tf_keras.broadcast(RANK, 1).numpy() == 1


for check_name, check in list(globals().items()):
    if check_name.startswith("check_") and callable(check):
        check()
        print("ok", check_name, flush=True)
hvd.shutdown()
