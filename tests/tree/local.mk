# SPDX-License-Identifier: Apache-2.0
# These check the source tree, not its behaviour.
tree_checks += \
  %D%/check-device-header \
  %D%/check-files \
  %D%/check-format \
  %D%/check-headers \
  %D%/check-kernels \
  %D%/check-layers \
  %D%/check-listed \
  %D%/check-pages \
  %D%/check-reference \
  %D%/check-symbols \
  %D%/check-words
EXTRA_DIST += $(tree_checks) %D%/check-install %D%/device_header.cu

# After make install, builds a program outside of the tree that finds the library by pkg-config.
installcheck-local:
	CC='$(CC)' $(SHELL) $(srcdir)/%D%/check-install '$(DESTDIR)' '$(pkgconfigdir)' '$(libdir)'
