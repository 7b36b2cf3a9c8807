/*
 * Lets a User-Mode Linux hear an interrupt that comes while it goes to sleep: preloaded into it. An
 * interrupt of a device is SIGIO. Linux 6.1 turns interrupts off before it sleeps for want of work
 * (arch/um/os-Linux: os_idle_sleep), but those that come from then on are only noted, and sigsuspend(2)
 * waits for the next signal: up to 10 ms, until the guest's tick. A guest that answers another one does so
 * thousands of times a second, and spends most of its time in these waits.
 *
 * A signal is noted here, too, until its guest asks what it was for (epoll_wait(2)). Before the guest
 * sleeps it is looked for, while it cannot come.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>

typedef void (*handler_call)(int, siginfo_t *, void *);
typedef int (*sigaction_call)(int, const struct sigaction *, struct sigaction *);
typedef int (*sigsuspend_call)(const sigset_t *);
typedef int (*epoll_wait_call)(int, struct epoll_event *, int, int);

/* One thread takes the signal, and it is the one that sleeps. */
static volatile sig_atomic_t noted;
static volatile handler_call theirs;

static void note(int signal, siginfo_t *info, void *context)
{
    noted = 1;
    theirs(signal, info, context);
}

int sigaction(int signal, const struct sigaction *new, struct sigaction *old)
{
    static sigaction_call next;
    struct sigaction ours;
    handler_call before = theirs;
    if (!next)
        next = (sigaction_call)dlsym(RTLD_NEXT, "sigaction");
    if (signal == SIGIO && new && new->sa_flags & SA_SIGINFO) {
        ours = *new;
        theirs = new->sa_sigaction;
        ours.sa_sigaction = note;
        new = &ours;
    }
    int result = next(signal, new, old);
    /* It is put back when the kernel has tried another one as it boots. */
    if (result == 0 && old && old->sa_sigaction == note)
        old->sa_sigaction = before;
    return result;
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
    static epoll_wait_call next;
    if (!next)
        next = (epoll_wait_call)dlsym(RTLD_NEXT, "epoll_wait");
    noted = 0;
    return next(epoll, events, most, timeout);
}

int sigsuspend(const sigset_t *mask)
{
    static sigsuspend_call next;
    sigset_t io, before;
    int result = -1;
    if (!next)
        next = (sigsuspend_call)dlsym(RTLD_NEXT, "sigsuspend");
    sigemptyset(&io);
    sigaddset(&io, SIGIO);
    sigprocmask(SIG_BLOCK, &io, &before);
    if (noted)
        errno = EINTR;
    else
        result = next(mask);
    /* The kernel serves what it has noted when it turns interrupts on, which it does now. */
    noted = 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return result;
}
