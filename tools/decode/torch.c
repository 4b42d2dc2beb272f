/* SPDX-License-Identifier: Apache-2.0
 * Runs torch's attention over the same keys in a Python process, for comparison. */
#include "tools/decode/decode.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* It says its version, and then two times in us for each line that it gets. torch is asked for huge pages, as the tools
 * ask for them. Both forms must agree. */
static const char script[] =
    "import os, sys, time\n"
    "os.environ.setdefault('THP_MEM_ALLOC_ENABLE', '1')\n"
    "import torch\n"
    "from torch.nn.functional import scaled_dot_product_attention as attend\n"
    "batch, heads, kv_heads, dim, value_dim, keys, threads = map(int, sys.argv[1:8])\n"
    "kind = {'f32': torch.float32, 'f16': torch.float16, 'bf16': torch.bfloat16}[sys.argv[8]]\n"
    "torch.set_num_threads(threads)\n"
    "q = torch.randn(batch, heads, 1, dim, dtype=kind)\n"
    "k = torch.randn(batch, kv_heads, keys, dim, dtype=kind)\n"
    "v = k[..., :value_dim] if value_dim < dim else torch.randn_like(k)\n"
    "folded_q = q.view(batch, kv_heads, heads // kv_heads, dim)\n"
    "has_gqa = tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 5)\n"
    "def as_is():\n"
    "    if has_gqa:\n"
    "        return attend(q, k, v, enable_gqa=True)\n"
    "    return attend(q, *(x.repeat_interleave(heads // kv_heads, 1) for x in (k, v)))\n"
    "def folded():\n"
    "    return attend(folded_q, k, v).reshape(batch, heads, 1, value_dim)\n"
    "assert (as_is() - folded()).abs().max() <= 0.02 * v.abs().max(), 'both forms of torch differ'\n"
    "print(torch.__version__.split('+')[0], 'with enable_gqa' if has_gqa else 'on repeated KV heads', flush=True)\n"
    "for _ in sys.stdin:\n"
    "    times = []\n"
    "    for form in as_is, folded:\n"
    "        since = time.perf_counter()\n"
    "        form()\n"
    "        times.append(1e6 * (time.perf_counter() - since))\n"
    "    print(*times, flush=True)\n";

enum { NUMBERS = 7, ANSWER_S = 600 };

struct decode_torch {
  pid_t pid;
  int fd;
  FILE *answers;
  char version[64];
};

static bool read_answer(decode_torch *torch, char *text, int bytes, tool_error *error) {
  if (fgets(text, bytes, torch->answers) != NULL) {
    text[strcspn(text, "\n")] = '\0';
    return true;
  }
  return tool_error_set(
      error, "--against torch: python3 ended, or did not answer for %d s; it needs torch 2.0 or newer", ANSWER_S);
}

/* In the child. */
static void become_torch(int fd, char numbers[NUMBERS][16], const char *dtype) {
  dup2(fd, STDIN_FILENO);
  dup2(fd, STDOUT_FILENO);
  execlp("python3", "python3", "-c", script, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5],
         numbers[6], dtype, (char *)NULL);
  fprintf(stderr, "python3: %s\n", strerror(errno));
  _exit(127);
}

decode_torch *decode_torch_start(const decode_problem *problem, int32_t threads, tool_error *error) {
  const int32_t values[NUMBERS] = {
      problem->batch,  problem->heads, problem->kv_heads, problem->head_dim, problem->value_dim,
      problem->tokens, threads};
  char numbers[NUMBERS][16];
  int ends[2];
  decode_torch *torch = calloc(1, sizeof *torch);
  for (int i = 0; i < NUMBERS; i++) snprintf(numbers[i], sizeof numbers[i], "%d", values[i]);
  if (torch == NULL || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    free(torch);
    tool_error_set(error, "--against torch: %s", strerror(errno));
    return NULL;
  }
  torch->fd = ends[0];
  torch->answers = fdopen(ends[0], "r");
  torch->pid = fork();
  if (torch->pid == 0) become_torch(ends[1], numbers, tool_dtype_name(problem->dtype));
  close(ends[1]);
  const struct timeval patience = {.tv_sec = ANSWER_S};
  setsockopt(torch->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (torch->answers == NULL || !read_answer(torch, torch->version, sizeof torch->version, error)) {
    decode_torch_end(torch);
    return NULL;
  }
  return torch;
}

bool decode_torch_run_us(decode_torch *torch, double *as_is_us, double *folded_us, tool_error *error) {
  char text[128] = "";
  send(torch->fd, "\n", 1, MSG_NOSIGNAL); /* a process that is gone does not answer */
  if (!read_answer(torch, text, sizeof text, error)) return false;
  return sscanf(text, "%lf %lf", as_is_us, folded_us) == 2 ||
         tool_error_set(error, "--against torch: python3 answered %.60s", text);
}

const char *decode_torch_version(const decode_torch *torch) { return torch->version; }

void decode_torch_end(decode_torch *torch) {
  if (torch == NULL) return;
  if (torch->answers != NULL) fclose(torch->answers);
  if (torch->pid > 0) {
    kill(torch->pid, SIGKILL);
    waitpid(torch->pid, NULL, 0);
  }
  free(torch);
}
