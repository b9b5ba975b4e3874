/* A rank of Open MPI with ULFM that does what tests/chaos/rank.py does with Rueda: allreduces of
 * random sizes, each checked, and after a failure revoke, shrink and the next one. It keeps the
 * same diary.
 *
 *     ulfm_rank FOLDER PHASE SEED
 */
// mpi-ext.h needs what mpi.h declares.
// clang-format off
#include <mpi.h>
#include <mpi-ext.h>
// clang-format on
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { largest = 3 << 20 };
static float pattern[largest], mine[largest], sums[largest];
static FILE* diary;
static MPI_Comm comm;

static void note(const char* format, ...) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  char line[512];
  const int used = snprintf(line, sizeof line, "{\"at\": %.9f, ", now.tv_sec + 1e-9 * now.tv_nsec);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line + used, sizeof line - used, format, arguments);
  va_end(arguments);
  fprintf(diary, "%s}\n", line);
  fflush(diary);
}

/* The same numbers on all ranks. */
static uint32_t random_of(uint32_t seed, uint32_t step, uint32_t what) {
  uint32_t mixed = seed * 2654435761U ^ step * 2246822519U ^ what * 3266489917U;
  mixed ^= mixed >> 15;
  mixed *= 2246822519U;
  return mixed ^ mixed >> 13;
}

static int size_of(const char* phase, uint32_t chance) {
  if (strcmp(phase, "idle") == 0) return chance % 2 ? 1 : 1000;
  if (strcmp(phase, "small") == 0) return chance % 3 == 0 ? 1 : chance % 3 == 1 ? 33 : 1000;
  if (strcmp(phase, "large") == 0) return chance % 2 ? 1 << 20 : 3 << 20;
  return chance % 4 == 0 ? 1 : chance % 4 == 1 ? 1000 : chance % 4 == 2 ? 1 << 18 : 1 << 20;
}

static int pause_of(const char* phase, uint32_t chance) {
  const int longest = strcmp(phase, "idle") == 0 ? 10000 : strcmp(phase, "mixed") == 0 ? 2000 : 0;
  return longest == 0 ? 0 : (int)(chance % (uint32_t)longest);
}

static int allreduce(int step, int count) {
  int rank, size;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  const float mine_more = (float)(rank + step % 11);
  for (int i = 0; i < count; ++i) mine[i] = pattern[i] + mine_more;
  const int code = MPI_Allreduce(mine, sums, count, MPI_FLOAT, MPI_SUM, comm);
  if (code != MPI_SUCCESS) return code;
  const float ranks = (float)size;
  const float all_more = (float)(size * (size - 1) / 2 + size * (step % 11));
  for (int i = 0; i < count; i += count / 1009 > 1 ? count / 1009 : 1) {
    if (sums[i] != pattern[i] * ranks + all_more) {
      note("\"event\": \"wrong\", \"step\": %d", step);
      abort();
    }
  }
  return MPI_SUCCESS;
}

static int maximum(int* number) {
  int most = 0;
  const int code = MPI_Allreduce(number, &most, 1, MPI_INT, MPI_MAX, comm);
  if (code == MPI_SUCCESS) *number = most;
  return code;
}

/* A world of those that are left, in which all are at the same step, and a first checked sum. */
static void recover(int* step) {
  do {
    MPI_Comm left;
    MPIX_Comm_revoke(comm);
    if (MPIX_Comm_shrink(comm, &left) != MPI_SUCCESS) abort();
    comm = left;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  } while (maximum(step) != MPI_SUCCESS || allreduce(*step, 1000) != MPI_SUCCESS);
}

int main(int count, char** words) {
  if (count != 4) return 2;
  MPI_Init(NULL, NULL);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  comm = MPI_COMM_WORLD;
  int process;
  MPI_Comm_rank(comm, &process);
  char path[4096], end[4096];
  snprintf(path, sizeof path, "%s/rank%d", words[1], process);
  snprintf(end, sizeof end, "%s/end", words[1]);
  diary = fopen(path, "a");
  if (diary == NULL) return 2;
  for (int i = 0; i < largest; ++i) pattern[i] = (float)(i % 7);
  const char* phase = words[2];
  const uint32_t seed = (uint32_t)strtoul(words[3], NULL, 10);
  note("\"event\": \"born\", \"process\": %d, \"pid\": %d", process, (int)getpid());
  int step = 0, size;
  for (;;) {
    int code = MPI_SUCCESS;
    if (step % 8 == 0) {
      int last = access(end, F_OK) == 0;
      code = maximum(&last);
      if (code == MPI_SUCCESS && last) break;
    }
    if (code == MPI_SUCCESS)
      code = allreduce(step, size_of(phase, random_of(seed, (uint32_t)step, 1)));
    if (code != MPI_SUCCESS) {
      note("\"event\": \"broken\", \"step\": %d", step);
      recover(&step);
      MPI_Comm_size(comm, &size);
      note("\"event\": \"right\", \"size\": %d, \"step\": %d", size, step);
      continue;
    }
    ++step;
    usleep((useconds_t)pause_of(phase, random_of(seed, (uint32_t)step, 2)));
  }
  MPI_Comm_size(comm, &size);
  note("\"event\": \"end\", \"size\": %d, \"step\": %d", size, step);
  fclose(diary);
  _exit(0); /* MPI_Finalize may hang once ranks are lost, open-mpi/ompi issue 11404 */
}
