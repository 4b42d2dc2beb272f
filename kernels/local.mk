# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/attention.h \
  %D%/formats.c \
  %D%/formats.def \
  %D%/exact.h \
  %D%/export_math.h \
  %D%/f8.h \
  %D%/flashmla.h \
  %D%/merge_math.h \
  %D%/op.h \
  %D%/partial_check.c \
  %D%/partial_overlap.c \
  %D%/select.c \
  %D%/select.h \
  %D%/cpu/attention_amx_work.h \
  %D%/cpu/attention_avx512.h \
  %D%/cpu/attention_bounds.h \
  %D%/cpu/attention_bytes.h \
  %D%/cpu/attention_exp2.h \
  %D%/cpu/attention_inline.h \
  %D%/cpu/attention_loop.h \
  %D%/cpu/attention_plain.h \
  %D%/cpu/attention_portable.c \
  %D%/cpu/attention_prompt.h \
  %D%/cpu/attention_table.c \
  %D%/cpu/attention_unpack.h \
  %D%/cpu/attention_vector.h \
  %D%/cpu/attention_walk.h \
  %D%/cpu/attention_wide.h \
  %D%/cpu/block.h \
  %D%/cpu/detect.c \
  %D%/cpu/detect.h \
  %D%/cpu/merge_exact.h \
  %D%/cpu/merge_table.h \
  %D%/cpu/merge_template.h \
  %D%/cpu/merge_vector.h \
  %D%/cpu/portable.c \
  %D%/cpu/table.c \
  %D%/cpu/vec.h

# Each instruction set has its own flags.
if AVX2
noinst_LTLIBRARIES += libkernels_avx2.la
libbanyan_core_la_LIBADD += libkernels_avx2.la
endif
libkernels_avx2_la_SOURCES = %D%/cpu/attention_avx2.c %D%/cpu/merge_avx2.c
libkernels_avx2_la_CFLAGS = $(AM_CFLAGS) $(AVX2_CFLAGS)

if AVX512
noinst_LTLIBRARIES += libkernels_avx512.la
libbanyan_core_la_LIBADD += libkernels_avx512.la
endif
libkernels_avx512_la_SOURCES = %D%/cpu/attention_avx512.c %D%/cpu/merge_avx512.c
libkernels_avx512_la_CFLAGS = $(AM_CFLAGS) $(AVX512_CFLAGS)

if AVX512_BF16
noinst_LTLIBRARIES += libkernels_avx512_bf16.la
libbanyan_core_la_LIBADD += libkernels_avx512_bf16.la
endif
libkernels_avx512_bf16_la_SOURCES = %D%/cpu/attention_avx512_bf16.c
libkernels_avx512_bf16_la_CFLAGS = $(AM_CFLAGS) $(AVX512_BF16_CFLAGS)

if AMX
noinst_LTLIBRARIES += libkernels_amx.la
libbanyan_core_la_LIBADD += libkernels_amx.la
endif
libkernels_amx_la_SOURCES = %D%/cpu/attention_amx.c
libkernels_amx_la_CFLAGS = $(AM_CFLAGS) $(AMX_CFLAGS)

if NEON
noinst_LTLIBRARIES += libkernels_neon.la
libbanyan_core_la_LIBADD += libkernels_neon.la
endif
libkernels_neon_la_SOURCES = %D%/cpu/attention_neon.c
libkernels_neon_la_CFLAGS = $(AM_CFLAGS) $(NEON_CFLAGS)

# nvcc compiles these sources, and in tests the host's compiler does.
cuda_sources = \
  include/banyan_device.cuh \
  %D%/cuda/blocks.h \
  %D%/cuda/combine.cuh \
  %D%/cuda/decode.cuh \
  %D%/cuda/decode_combine.cuh \
  %D%/cuda/decode_element.cuh \
  %D%/cuda/decode_fragment.cuh \
  %D%/cuda/decode_general.cuh \
  %D%/cuda/decode_kernels.def \
  %D%/cuda/decode_latent.cuh \
  %D%/cuda/decode_load.cuh \
  %D%/cuda/decode_merge.cuh \
  %D%/cuda/decode_output.cuh \
  %D%/cuda/decode_shape.h \
  %D%/cuda/decode_walk.cuh \
  %D%/cuda/decode_warp.cuh \
  %D%/cuda/decode_wide.cuh \
  %D%/cuda/device.h \
  %D%/cuda/device_ptx.h \
  %D%/cuda/device_warpgroup.h \
  %D%/cuda/fused.h \
  %D%/cuda/interpret.cuh \
  %D%/cuda/interpret_bytes.cuh \
  %D%/cuda/kernels.cu \
  %D%/cuda/kernels.def \
  %D%/cuda/exact_sum.h \
  %D%/cuda/valid.h \
  %D%/cuda/merge.h \
  %D%/cuda/oneshot.cuh \
  %D%/cuda/remote.h \
  %D%/cuda/packets.h \
  %D%/cuda/partial.h \
  %D%/cuda/program.h \
  %D%/cuda/push.h \
  %D%/cuda/select.cuh \
  %D%/cuda/selection.h \
  %D%/cuda/unit.h \
  %D%/cuda/worker.h
EXTRA_DIST += $(cuda_sources) %D%/cuda/amalgamate

if NVCC
-include kernels.fatbin.d
endif
NVCCFLAGS = -O3
AM_NVCCFLAGS = -std=c++17 -I$(srcdir)/include -I$(srcdir)/kernels
kernels.fatbin: $(srcdir)/%D%/cuda/kernels.cu
	$(AM_V_GEN)$(NVCC) $(NVCC_ARCHS) $(AM_NVCCFLAGS) $(NVCCFLAGS) -Xptxas -v -MD -MP -MF $@.d \
	  -fatbin -o $@ $(srcdir)/%D%/cuda/kernels.cu 2>$@.log || { cat $@.log >&2; exit 1; }
	@grep -E 'warning|error' $@.log >&2 || :
	@ls -l $@ | awk '{ print "  " $$NF ": " $$5 " bytes" }'
MOSTLYCLEANFILES += kernels.fatbin kernels.fatbin.d kernels.fatbin.log

# Users' kernels include one header, generated from several. It is installed from a separate folder, because tests must
# find their own version and not this one.
nodist_include_HEADERS = installed/banyan_device.cuh
CLEANFILES += installed/banyan_device.cuh
installed/banyan_device.cuh: $(cuda_sources) $(srcdir)/%D%/merge_math.h $(srcdir)/%D%/exact.h $(srcdir)/%D%/export_math.h $(srcdir)/%D%/f8.h $(srcdir)/%D%/op.h $(srcdir)/%D%/formats.def
	@$(MKDIR_P) installed
	$(AM_V_GEN)$(srcdir)/%D%/cuda/amalgamate $(srcdir)/include/banyan_device.cuh $(srcdir)/%D% >$@.new && mv $@.new $@
