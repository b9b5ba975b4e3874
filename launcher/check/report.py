"""All rows of `rueda check`, and whether a world can be formed."""

from __future__ import annotations

from dataclasses import dataclass

from ..native import Native
from . import gpu, library, machine, mpi
from .row import Row, missing


@dataclass(frozen=True)
class Report:
    """What was found, in the order in which it is shown."""

    rows: list[Row]

    def found(self, *names: str) -> bool:
        """Whether all of `names` were found."""
        by_name = {row.name: row.found for row in self.rows}
        return all(by_name[name] for name in names)

    @property
    def ready(self) -> bool:
        """Whether ranks can find each other and exchange tensors on this machine."""
        by_mpi = self.found("transport mpi", "mpirun")
        return self.found("native extension") and (by_mpi or self.found("transport shm"))

    def as_json(self) -> dict[str, object]:
        """Schema 1, as `rueda check --help` documents it."""
        components = {row.name: row.as_json() for row in self.rows}
        return {"schema": 1, "ready": self.ready, "components": components}


def _transport(name: str, needs: list[Row]) -> Row:
    lacking = [row.name for row in needs if not row.found]
    if lacking:
        return missing(
            f"transport {name}", f"needs {' and '.join(lacking)}", f"see {' and '.join(lacking)}"
        )
    return Row(f"transport {name}", True)


def make_report(native: Native) -> Report:
    """Looks at everything; libraries are loaded in processes of their own."""
    extension, memfd, shm = (
        library.native_row(native),
        machine.memfd_row(),
        machine.shared_memory_row(),
    )
    plugin, mpi_rows = library.plugin_row(), mpi.library_rows()
    memory = memfd if memfd.found or not shm.found else shm
    return Report(
        [
            library.rueda_row(),
            extension,
            library.library_row(),
            plugin,
            *mpi_rows,
            mpi.mpirun_row(mpi_rows[0]),
            _transport("inproc", [extension]),
            _transport("shm", [extension, memory]),
            _transport("mpi", [extension, plugin, *mpi_rows[:2]]),
            gpu.support_row(native),
            gpu.nccl_row(),
            gpu.driver_row(),
            gpu.toolkit_row(),
            library.torch_row(),
            library.package_row("numpy", "pip install numpy"),
            library.python_row(),
            machine.cpu_row(),
            machine.instruction_sets_row(),
            shm,
            machine.vm_read_row(),
            memfd,
        ]
    )
