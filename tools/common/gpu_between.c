/* SPDX-License-Identifier: Apache-2.0 A kernel, as PTX text, that runs between timed kernels and evicts their data from
 * the caches. */
#include <stdio.h>
#include <stdlib.h>

#include "tools/common/gpu_driver.h"

enum { THREADS = 512, CACHES = 2, QUAD_BYTES = 16 };

struct gpu_between {
  gpu *device;
  CUmodule module;
  CUfunction kernel;
  int32_t parts;
  size_t bytes; /* size of a part */
  void *memory; /* all parts, followed by the word that the kernel may write */
};

/* Reads the memory, four 16-byte words at a time. The first warp of each block then executes the code. */
static const char head[] = ".version 7.0\n"
                           ".target sm_80\n"
                           ".address_size 64\n"
                           ".visible .entry perf_between(.param .u64 memory, .param .u64 quads, .param .u64 word)\n"
                           "{\n"
                           ".reg .pred %p<3>;\n"
                           ".reg .b32 %r<28>;\n"
                           ".reg .b64 %d<8>;\n"
                           "ld.param.u64 %d0, [memory];\n"
                           "ld.param.u64 %d1, [quads];\n"
                           "ld.param.u64 %d2, [word];\n"
                           "mov.u32 %r0, %tid.x;\n"
                           "mov.u32 %r1, %ntid.x;\n"
                           "mov.u32 %r2, %ctaid.x;\n"
                           "mov.u32 %r3, %nctaid.x;\n"
                           "mad.lo.u32 %r4, %r2, %r1, %r0;\n"
                           "mul.lo.u32 %r5, %r3, %r1;\n"
                           "cvt.u64.u32 %d3, %r4;\n"
                           "mul.wide.u32 %d4, %r5, 16;\n"
                           "mul.wide.u32 %d6, %r5, 3;\n"
                           "add.u64 %d7, %d3, %d6;\n"
                           "mul.wide.u32 %d6, %r5, 4;\n"
                           "shl.b64 %d3, %d3, 4;\n"
                           "add.u64 %d3, %d3, %d0;\n"
                           "mov.u32 %r8, %r4;\n"
                           "add.u32 %r9, %r4, 1;\n"
                           "add.u32 %r10, %r4, 2;\n"
                           "add.u32 %r11, %r4, 3;\n"
                           "sweep:\n"
                           "setp.ge.u64 %p0, %d7, %d1;\n"
                           "@%p0 bra swept;\n";

static const char middle[] = "add.u64 %d7, %d7, %d6;\n"
                             "bra sweep;\n"
                             "swept:\n"
                             "setp.ge.u32 %p1, %r0, 32;\n"
                             "@%p1 bra done;\n";

/* The compiler cannot know that the word is never written. */
static const char tail[] = "done:\n"
                           "xor.b32 %r8, %r8, %r9;\n"
                           "xor.b32 %r10, %r10, %r11;\n"
                           "xor.b32 %r8, %r8, %r10;\n"
                           "setp.eq.u32 %p2, %r8, 0x9e3779b9;\n"
                           "@%p2 st.global.u32 [%d2], %r8;\n"
                           "ret;\n"
                           "}\n";

/* Writes four chains of alternating multiplications and exclusive ors, which no compiler can merge. */
static void write_code(FILE *to) {
  for (unsigned i = 0; i < GPU_BETWEEN_INSTRUCTIONS; i++) {
    unsigned chain = 8 + i % 4, number = (i * 2654435761u) | 1;
    if (i / 4 % 2 == 0)
      fprintf(to, "mad.lo.u32 %%r%u, %%r%u, %u, %%r%u;\n", chain, chain, number, 8 + (i + 1) % 4);
    else
      fprintf(to, "xor.b32 %%r%u, %%r%u, %u;\n", chain, chain, number);
  }
}

char *gpu_between_text(void) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *to = open_memstream(&text, &bytes);
  if (to == NULL) return NULL;
  fputs(head, to);
  for (int i = 0; i < 4; i++) {
    int r = 12 + 4 * i;
    fprintf(to, "ld.global.v4.u32 {%%r%d, %%r%d, %%r%d, %%r%d}, [%%d3];\n", r, r + 1, r + 2, r + 3);
    fputs("add.u64 %d3, %d3, %d4;\n", to);
  }
  for (int i = 0; i < 16; i++) fprintf(to, "xor.b32 %%r%d, %%r%d, %%r%d;\n", 8 + i % 4, 8 + i % 4, 12 + i);
  fputs(middle, to);
  write_code(to);
  fputs(tail, to);
  bool ok = ferror(to) == 0;
  if (fclose(to) != 0 || !ok) {
    free(text);
    return NULL;
  }
  return text;
}

/* Makes a lazily loading driver load the kernel now, and not while kernels wait for each other. The kernel requests as
 * much shared memory as the library's kernels, because an SM does not run kernels with different shared-memory
 * configurations at the same time. */
static CUresult prepare(const bny_cuda_driver *driver, CUfunction kernel) {
  int registers;
  CUresult result = driver->cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel);
  if (result != CUDA_SUCCESS) return result;
  return driver->cuFuncSetAttribute(kernel, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                    CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
}

static bool load(gpu_between *made, tool_error *error) {
  const bny_cuda_driver *driver = &made->device->driver;
  char *text = gpu_between_text();
  bool ok = (text != NULL || tool_error_set(error, "out of memory")) &&
            gpu_succeeded(driver, driver->cuModuleLoadData(&made->module, text), "cuModuleLoadData", error) &&
            gpu_succeeded(driver, driver->cuModuleGetFunction(&made->kernel, made->module, "perf_between"),
                          "cuModuleGetFunction", error) &&
            gpu_succeeded(driver, prepare(driver, made->kernel), "cuFuncSetAttribute", error);
  free(text);
  return ok;
}

bool gpu_between_make(gpu *device, int32_t parts, gpu_between **between, tool_error *error) {
  gpu_between *made = calloc(1, sizeof *made);
  if (made == NULL) return tool_error_set(error, "out of memory");
  made->device = device;
  made->parts = parts;
  made->bytes = CACHES * (size_t)gpu_facts_of(device)->cache_bytes / (size_t)parts / QUAD_BYTES * QUAD_BYTES;
  if (!load(made, error) || !gpu_take(device, made->bytes * (size_t)parts + QUAD_BYTES, &made->memory, error)) {
    gpu_between_free(made);
    return false;
  }
  *between = made;
  return true;
}

void gpu_between_free(gpu_between *between) {
  if (between == NULL) return;
  if (between->module != NULL) between->device->driver.cuModuleUnload(between->module);
  gpu_give(between->device, between->memory);
  free(between);
}

bool gpu_between_put(const gpu_between *between, int32_t part, void *stream, tool_error *error) {
  const bny_cuda_driver *driver = &between->device->driver;
  int32_t sms = gpu_facts_of(between->device)->sms, blocks = sms > between->parts ? sms / between->parts : 1;
  char *memory = (char *)between->memory + (size_t)part * between->bytes;
  char *word = (char *)between->memory + (size_t)between->parts * between->bytes;
  uint64_t quads = between->bytes / QUAD_BYTES;
  void *arguments[] = {&memory, &quads, &word};
  CUresult result =
      driver->cuLaunchKernel(between->kernel, (unsigned)blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL);
  return gpu_succeeded(driver, result, "cuLaunchKernel", error);
}
