/*
 * Lets a User-Mode Linux run on a CPU whose extended state is larger than the kernel knew when it was
 * built: preloaded into it. Linux 6.1 keeps at most 2696 bytes of it for a process and writes back as
 * many, but a host takes all of it or nothing (ptrace(2), PTRACE_SETREGSET of NT_X86_XSTATE): with
 * AMX that is 11008 bytes, and no program of the guest comes past its first system call.
 *
 * What the guest does not know stays as the host has it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

/* Larger than any CPU has. Not on the stack: the guest's kernel has but a small one. It is one thread. */
static char whole[1 << 16] __attribute__((aligned(64)));

typedef long (*ptrace_call)(enum __ptrace_request, pid_t, void *, void *);

long ptrace(enum __ptrace_request request, ...)
{
    static ptrace_call next;
    va_list args;
    va_start(args, request);
    pid_t pid = va_arg(args, pid_t);
    void *addr = va_arg(args, void *);
    void *data = va_arg(args, void *);
    va_end(args);
    if (!next)
        next = (ptrace_call)dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && addr == (void *)NT_X86_XSTATE) {
        const struct iovec *given = data;
        struct iovec all = {whole, sizeof whole};
        if (next(PTRACE_GETREGSET, pid, addr, &all) == 0 && all.iov_len > given->iov_len) {
            memcpy(whole, given->iov_base, given->iov_len);
            return next(request, pid, addr, &all);
        }
    }
    return next(request, pid, addr, data);
}
