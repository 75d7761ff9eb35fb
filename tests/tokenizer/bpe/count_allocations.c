// Counts what a process asks of the allocator: loaded before libc, around whose functions it stands.
#include <errno.h>
#include <stddef.h>

static long count;

long allocations(void) { return count; }

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t size) { return ++count, __libc_malloc(size); }
void *calloc(size_t items, size_t size) { return ++count, __libc_calloc(items, size); }
void *realloc(void *memory, size_t size) { return ++count, __libc_realloc(memory, size); }
void *memalign(size_t alignment, size_t size) { return ++count, __libc_memalign(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return ++count, __libc_memalign(alignment, size); }

int posix_memalign(void **memory, size_t alignment, size_t size) {
  ++count;
  *memory = __libc_memalign(alignment, size);
  return *memory ? 0 : ENOMEM;
}
