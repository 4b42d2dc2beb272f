# SPDX-License-Identifier: Apache-2.0
# "make check-gpu" runs these on a GPU, and test_gpu_bundle.sh on an emulated one.
test_scripts += \
  %D%/test_check_gpu.py \
  %D%/test_gpu_bundle.sh
gpu_tests += \
  %D%/test_gpu_graph \
  %D%/test_gpu_words
%C%_test_gpu_graph_SOURCES = %D%/test_gpu_graph.c
%C%_test_gpu_graph_LDADD = $(gpu_tests_libs)
%C%_test_gpu_words_SOURCES = %D%/test_gpu_words.c %D%/words.h
%C%_test_gpu_words_LDADD = $(gpu_tests_libs)
%C%_test_gpu_words_CPPFLAGS = $(AM_CPPFLAGS)
if NVCC
%C%_test_gpu_words_CPPFLAGS += -DWORDS_IMAGE='"tests/gpu/words.fatbin"'
words_object = %D%/test_gpu_words-test_gpu_words.$(OBJEXT)
$(words_object): tests/gpu/words.fatbin
endif
words_kernels = %D%/words.cu %D%/words.cuh
tests/gpu/words.fatbin: $(words_kernels) $(srcdir)/%D%/words.h $(srcdir)/kernels/cuda/device.h \
    $(srcdir)/kernels/cuda/device_ptx.h
	@$(MKDIR_P) tests/gpu
	$(AM_V_GEN)$(NVCC) $(NVCC_ARCHS) $(AM_NVCCFLAGS) $(NVCCFLAGS) -I$(srcdir) -fatbin -o $@ $(srcdir)/%D%/words.cu

gpu_tests_libs = libbanyan_gpu.la libbanyan_launch.la $(LDADD)
if CUDA
if CHECK
check_PROGRAMS += $(gpu_tests)
else
EXTRA_PROGRAMS += $(gpu_tests)
endif
else
EXTRA_PROGRAMS += $(gpu_tests)
endif
tests/gpu/user_kernel.fatbin: $(srcdir)/%D%/user_kernel.cu $(srcdir)/tests/emulate/user_kernel.cuh $(srcdir)/tests/emulate/user_kernel.h \
    installed/banyan_device.cuh
	@$(MKDIR_P) tests/gpu
	$(AM_V_GEN)$(NVCC) $(NVCC_ARCHS) -std=c++17 -Iinstalled -I$(srcdir)/include -I$(srcdir) $(NVCCFLAGS) \
	  -fatbin -o $@ $(srcdir)/%D%/user_kernel.cu
MOSTLYCLEANFILES += tests/gpu/user_kernel.fatbin tests/gpu/words.fatbin
EXTRA_DIST += $(words_kernels) %D%/user_kernel.cu %D%/check-gpu %D%/make-bundle %D%/rivals.py

# Runs all tests that need a GPU; without one they exit with 77, which means skipped.
check-gpu: all
	$(MAKE) $(AM_MAKEFLAGS) $(gpu_tests) `$(srcdir)/%D%/make-bundle --behaviour`
	@status=0; \
	$(srcdir)/%D%/check-gpu --tests tests/gpu --tools . --output gpu-results.json $(CHECK_GPU_FLAGS) || status=$$?; \
	if [ $$status = 77 ]; then echo "SKIP: check-gpu (77)"; else exit $$status; fi

# Packs the same tests for a machine with only a GPU, see docs/gpu-results/README.md. Kernels are for devices of
# GPU_BUNDLE_ARCHS, and as PTX of the last of them for later devices.
gpu-bundle:
	CC='$(CC)' CXX='$(CXX)' $(srcdir)/%D%/make-bundle '$(abs_top_srcdir)' '$(abs_top_builddir)' '$(VERSION)' '$(GPU_BUNDLE_JOBS)' \
	  '$(GPU_BUNDLE_ARCHS)'
GPU_BUNDLE_JOBS = 2
GPU_BUNDLE_ARCHS = 90
.PHONY: check-gpu gpu-bundle
distclean-local:
	rm -rf gpu-bundle banyan-gpu-*.tar.gz gpu-results.json
