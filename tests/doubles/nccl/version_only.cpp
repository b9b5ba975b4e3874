// An NCCL that is new enough by its number, and lacks everything else.
extern "C" int ncclGetVersion(int* version) {
  *version = 22703;
  return 0;
}
