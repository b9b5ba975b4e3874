"""Digits that Spark feeds to Keras: digits_tfos.py for TensorFlowOnSpark, digits_spark.py for Rueda."""

import argparse

import numpy as np
import sklearn.datasets
from pyspark.sql import SparkSession
from tensorflowonspark import TFCluster


def train(args, ctx):
    import keras
    from tensorflow.distribute import MultiWorkerMirroredStrategy
    from tensorflowonspark import TFNode

    feed = TFNode.DataFeed(ctx.mgr)

    def batches():
        while not feed.should_stop():
            if rows := feed.next_batch(args.batch):
                images, labels = zip(*rows, strict=True)
                yield np.array(images, "float32") / 16, np.array(labels)

    def build():
        layers = [keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        model = keras.Sequential(layers)
        optimizer = keras.optimizers.SGD(0.1)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
        return model

    with MultiWorkerMirroredStrategy().scope():
        model = build()
    steps = args.epochs * 1437 // (args.ranks * args.batch)
    # A worker that runs out of rows would make the others wait forever, so not all rows are used.
    model.fit(batches(), steps_per_epoch=steps * 9 // 10, verbose=0)
    if ctx.job_name == "chief":
        model.save(args.model)
    feed.terminate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--model", default="digits.keras")
    args = parser.parse_args()
    context = SparkSession.builder.appName("digits").getOrCreate().sparkContext
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    pairs = zip(images[360:].tolist(), labels[360:].tolist(), strict=True)
    rows = context.parallelize(list(pairs), args.ranks)
    mode = TFCluster.InputMode.SPARK
    cluster = TFCluster.run(
        context, train, args, args.ranks, 0, input_mode=mode, master_node="chief"
    )
    cluster.train(rows, args.epochs)
    cluster.shutdown()
    context.stop()
