// Preloaded into a process: appends a line "SECONDS BYTES" to the file of TACC_ALLOCATIONS for each allocation of 64 KiB or more,
// SECONDS since the epoch.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { kLarge = 64 << 10 };

static int log_fd = -1;

static void note(size_t bytes) {
  if (bytes < kLarge) return;
  if (log_fd == -1) {
    const char* path = getenv("TACC_ALLOCATIONS");
    log_fd = path == NULL ? -2 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }
  if (log_fd < 0) return;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  char line[64];
  const int length = snprintf(line, sizeof(line), "%lld.%06ld %zu\n", (long long)now.tv_sec, now.tv_nsec / 1000, bytes);
  if (write(log_fd, line, (size_t)length) != length) log_fd = -2;
}

// glibc's own names, so that no lookup is needed (dlsym itself allocates).
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  note(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  note(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  note(bytes);
  return __libc_realloc(old, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  void* block = memalign(alignment, bytes);
  if (block == NULL) return ENOMEM;
  *out = block;
  return 0;
}
