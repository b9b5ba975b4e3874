"""Arguments that are easily confused: the error says what to pass instead."""

from __future__ import annotations

from launching import alone


def test_what_is_given_in_the_wrong_place_is_told_in_words() -> None:
    ended = alone(
        """
        import numpy as np, torch
        import rueda, rueda.torch
        rueda.init()
        model = torch.nn.Linear(3, 1)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)

        def text_of(function, *arguments, **options):
            try:
                function(*arguments, **options)
            except rueda.InvalidArgumentError as error:
                return str(error)
            raise AssertionError(f"{function} took {arguments} {options}")

        assert "model.state_dict()" in text_of(rueda.torch.broadcast_parameters, model)
        for function in rueda.torch.DistributedOptimizer, rueda.torch.broadcast_optimizer_state:
            assert "a Linear is not an optimizer" in text_of(function, model)
        assert "a Linear is not an optimizer" in text_of(rueda.torch.wrap, model, model)
        told = text_of(
            rueda.torch.allreduce, torch.ones(2), compression=rueda.torch.Compression.fp16
        )
        assert "compression=Compression.fp16 is neither" in told and "give 'fp16'" in told, told
        told = text_of(rueda.torch.wrap, model, sgd, strategy="hogwild,guard=scale")
        assert "after a colon: 'hogwild:guard=scale'" in told, told
        """
    )
    assert ended.returncode == 0, ended.output


def test_a_folder_that_cannot_be_made_is_told_with_its_number() -> None:
    ended = alone(
        """
        import errno
        from pathlib import Path
        from rueda.checkpoint.folder import make
        try:
            make(Path("/proc/no/such"))
        except FileNotFoundError as error:
            assert error.errno == errno.ENOENT and error.filename.startswith("/proc/no"), error
        else:
            raise AssertionError("/proc/no/such was made")
        """
    )
    assert ended.returncode == 0, ended.output
