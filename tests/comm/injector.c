/* SPDX-License-Identifier: Apache-2.0
 * Traps every system call by seccomp. Calls of the trap handler itself are recognised by their address and pass. */
#include "injector.h"

#if defined(__x86_64__) && defined(__linux__)
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

/* long injector_call(long number, long a, long b, long c, long d, long e, long f), as syscall() without errno. */
__asm__(".text\n"
        ".type injector_call, @function\n"
        "injector_call:\n"
        "  mov %rdi, %rax\n"
        "  mov %rsi, %rdi\n"
        "  mov %rdx, %rsi\n"
        "  mov %rcx, %rdx\n"
        "  mov %r8, %r10\n"
        "  mov %r9, %r8\n"
        "  mov 8(%rsp), %r9\n"
        "  syscall\n"
        "injector_return:\n"
        "  ret\n"
        ".size injector_call, . - injector_call\n");
long injector_call(long number, long a, long b, long c, long d, long e, long f);
extern const char injector_return[];

static _Thread_local bool counting;
static injector_deed deed;
static int calls, fatal_call;
static bool waits;
static atomic_int *happened;

static bool is_wait(long number) {
  static const long waiting[] = {SYS_nanosleep, SYS_clock_nanosleep, SYS_epoll_wait, SYS_epoll_pwait,  SYS_poll,
                                 SYS_ppoll,     SYS_sched_yield,     SYS_getpid,     SYS_clock_gettime};
  for (size_t i = 0; i < sizeof waiting / sizeof waiting[0]; i++)
    if (number == waiting[i]) return true;
  return false;
}

static void count(long number) {
  bool is_another = !(is_wait(number) && waits);
  waits = is_wait(number);
  if (!is_another || ++calls != fatal_call) return;
  atomic_store(happened, 1);
  injector_call(SYS_kill, injector_call(SYS_getpid, 0, 0, 0, 0, 0, 0), deed == INJECTOR_DIE ? SIGKILL : SIGSTOP, 0, 0,
                0, 0);
}

static void make_call(int signal_number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  (void)signal_number;
  if (counting) count(info->si_syscall);
  registers[REG_RAX] =
      injector_call(info->si_syscall, (long)registers[REG_RDI], (long)registers[REG_RSI], (long)registers[REG_RDX],
                    (long)registers[REG_R10], (long)registers[REG_R8], (long)registers[REG_R9]);
}

/* Calls that start or end threads and processes, or that run with signals blocked, cannot be trapped. */
static bool trap_calls(void) {
  static const uint32_t spared[] = {SYS_rt_sigreturn, SYS_rt_sigprocmask,  SYS_clone,  SYS_clone3,     SYS_fork,
                                    SYS_vfork,        SYS_execve,          SYS_exit,   SYS_exit_group, SYS_futex,
                                    SYS_rseq,         SYS_set_robust_list, SYS_madvise};
  enum { SPARED = sizeof spared / sizeof spared[0] };
  uint64_t address = (uint64_t)(uintptr_t)injector_return;
  struct sock_filter filter[SPARED + 8];
  int n = 0;
  filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < SPARED; i++)
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, spared[i], (uint8_t)(SPARED - i - 1 + 5), 0);
  filter[n++] =
      (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer));
  filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)address, 0, 2);
  filter[n++] =
      (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4);
  filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(address >> 32), 1, 0);
  filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
  filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {(unsigned short)n, filter};
  struct sigaction action = {.sa_sigaction = make_call, .sa_flags = SA_SIGINFO};
  return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

bool injector_works(void) {
  int how = 1;
  pid_t child = fork();
  if (child == 0) {
    bool trapped = trap_calls();
    counting = true;
    _exit(!trapped || getppid() <= 0 || calls != 1);
  }
  return child > 0 && waitpid(child, &how, 0) == child && how == 0;
}

void injector_arm(injector_deed wanted, int at, atomic_int *has_happened) {
  deed = wanted;
  fatal_call = at;
  happened = has_happened;
  calls = 0;
  waits = false;
  if (!trap_calls()) abort();
  counting = true;
}

int injector_disarm(void) {
  counting = false;
  return calls;
}
#else
bool injector_works(void) { return false; }
void injector_arm(injector_deed deed, int at, atomic_int *has_happened) { (void)deed, (void)at, (void)has_happened; }
int injector_disarm(void) { return 0; }
#endif
