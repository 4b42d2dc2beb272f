# SPDX-License-Identifier: Apache-2.0
# Macros of this project alone.

# BNY_ENABLE_KERNELS
# --enable-kernels into enable_kernels: all, native, or a list of instruction sets.
AC_DEFUN([BNY_ENABLE_KERNELS], [
  AC_ARG_ENABLE([kernels],
    [AS_HELP_STRING([--enable-kernels=LIST], [instruction sets that get kernels next to portable C: all, native (those of
      this processor), portable (none), or a list such as avx2,avx512 @<:@all@:>@])],
    [], [enable_kernels=all])
  for set in `AS_ECHO(["$enable_kernels"]) | tr , ' '`; do
    AS_CASE([$set], [all|yes|native|portable|no|avx2|avx512|avx512_bf16|amx|neon], [],
      [AC_MSG_ERROR([--enable-kernels: $set is none of all, native, portable, avx2, avx512, avx512_bf16, amx, neon])])
  done
])

# BNY_CHECK_CFLAGS(NAME, FLAGS, HOSTS, FEATURES)
# On HOSTS, a pattern: the automake conditional NAME in capitals, NAME_CFLAGS, and the macro BNY_HAVE_NAME say whether
# kernels of this instruction set are wanted and the compiler makes code for it. FEATURES are the words of /proc/cpuinfo
# that a processor with it has.
AC_DEFUN([BNY_CHECK_CFLAGS], [
  have_$1=no wanted_$1=no
  AS_CASE([",$enable_kernels,"],
    [*,all,* | *,yes,* | *,$1,*], [wanted_$1=yes],
    [*,native,*],
      [wanted_$1=yes
       for feature in $4; do grep -qw "$feature" /proc/cpuinfo 2>/dev/null || wanted_$1=no; done])
  AS_IF([test $wanted_$1 = yes], [AS_CASE([$host], [$3], [
    AC_MSG_CHECKING([whether $CC accepts $2])
    save_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS $2"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])], [have_$1=yes])
    CFLAGS=$save_CFLAGS
    AC_MSG_RESULT([$have_$1])])])
  AS_IF([test $have_$1 = yes],
    [m4_toupper([$1])_CFLAGS="$2"
     bny_instruction_sets="$bny_instruction_sets $1"
     AC_DEFINE([BNY_HAVE_]m4_toupper([$1]), [1], [kernels for $1 are built])])
  AC_SUBST(m4_toupper([$1])[_CFLAGS])
  AM_CONDITIONAL(m4_toupper([$1]), [test $have_$1 = yes])
])

# BNY_WITH_ARG(NAME, PURPOSE)
# --with-NAME=auto|yes|no into with_NAME; absent_NAME says why it will be absent if it is.
AC_DEFUN([BNY_WITH_ARG], [
  AC_ARG_WITH([$1], [AS_HELP_STRING([--with-$1], [$2: auto, yes or no @<:@auto@:>@])], [], [with_$1=auto])
  have_$1=no
  absent_$1="not found"
  AS_CASE([$with_$1],
    [auto|yes], [],
    [no], [absent_$1="not wanted"],
    [AC_MSG_ERROR([--with-$1=$with_$1: wants auto, yes or no])])
])

# BNY_WITH_END(NAME, PACKAGE)
# An error if NAME was asked for and not found; PACKAGE is what to install.
AC_DEFUN([BNY_WITH_END], [
  AS_IF([test "x$with_$1" = xyes && test "x$have_$1" = xno],
    [AC_MSG_ERROR([--with-$1: not found. Debian and Ubuntu: $2. If it is elsewhere, set PKG_CONFIG_PATH])])
])

# BNY_WITH_PKG(NAME, VARIABLE, PURPOSE, MODULE, PACKAGE)
# --with-NAME through pkg-config: VARIABLE_CFLAGS, VARIABLE_LIBS, have_NAME, version_NAME.
AC_DEFUN([BNY_WITH_PKG], [
  BNY_WITH_ARG([$1], [$3])
  AS_IF([test "x$with_$1" != xno],
    [PKG_CHECK_MODULES([$2], [$4],
      [have_$1=yes
       version_$1=`$PKG_CONFIG --modversion "$4" 2>/dev/null`],
      [have_$1=no])])
  BNY_WITH_END([$1], [apt-get install $5])
])

# BNY_WITH_MPI
# MPI_CFLAGS, MPI_LIBS, MPI_REQUIRES (a pkg-config module, or nothing), the conditional MPI, mpi_found.
AC_DEFUN([BNY_WITH_MPI], [
  BNY_WITH_ARG([mpi], [libbanyan-mpi and tools under mpirun])
  AC_ARG_VAR([MPICC], [MPI compiler wrapper, asked for its flags where pkg-config knows no MPI])
  MPI_REQUIRES=
  AS_IF([test "x$with_mpi" != xno],
    [PKG_CHECK_MODULES([MPI], [ompi-c], [have_mpi=yes MPI_REQUIRES=ompi-c],
      [PKG_CHECK_MODULES([MPI], [mpi-c], [have_mpi=yes MPI_REQUIRES=mpi-c], [have_mpi=no])])
     AS_IF([test $have_mpi = yes],
       [mpi_found="`$PKG_CONFIG --modversion $MPI_REQUIRES 2>/dev/null`, module $MPI_REQUIRES"],
       [AC_CHECK_PROGS([MPICC], [mpicc])
        AS_IF([test -n "$MPICC"],
          [AC_MSG_CHECKING([whether $MPICC says its flags])
           AS_IF([MPI_CFLAGS=`$MPICC --showme:compile 2>/dev/null` && MPI_LIBS=`$MPICC --showme:link 2>/dev/null`],
             [have_mpi=yes mpi_found="$MPICC"])
           AC_MSG_RESULT([$have_mpi])])])])
  BNY_WITH_END([mpi], [apt-get install libopenmpi-dev openmpi-bin])
  AC_SUBST([MPI_CFLAGS])
  AC_SUBST([MPI_LIBS])
  AC_SUBST([MPI_REQUIRES])
  MPI_PC_CFLAGS= MPI_PC_LIBS=
  AS_IF([test -z "$MPI_REQUIRES"], [MPI_PC_CFLAGS=$MPI_CFLAGS MPI_PC_LIBS=$MPI_LIBS])
  AC_SUBST([MPI_PC_CFLAGS])
  AC_SUBST([MPI_PC_LIBS])
  AM_CONDITIONAL([MPI], [test $have_mpi = yes])
])

# BNY_CUDA_TRY(DIRECTORY)
# Sets have_cuda, CUDA_CFLAGS and version_cuda if a toolkit is there.
AC_DEFUN([BNY_CUDA_TRY], [
  AS_IF([test $have_cuda = no && test -n "$1" && test -e "$1/include/cuda.h"],
    [AC_MSG_CHECKING([for CUDA's headers in $1])
     save_CPPFLAGS=$CPPFLAGS
     CUDA_CFLAGS="-isystem $1/include"
     CPPFLAGS="$CPPFLAGS $CUDA_CFLAGS"
     AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
#include <cuda.h>
#include <cudaTypedefs.h>
#if CUDA_VERSION < 12040
#error too old
#endif
]], [PFN_cuFuncLoad_v12040 function = 0; return function != 0;])],
       [have_cuda=yes
        cuda_home=$1
        version_cuda=[`sed -n 's/^#define CUDA_VERSION \([0-9]*\)\([0-9][0-9]\)[0-9]$/\1.\2/p' "$1/include/cuda.h" |
          sed 's/[.]0/./'`]],
       [CUDA_CFLAGS= absent_cuda="$1 is no CUDA 12.4 or newer"])
     CPPFLAGS=$save_CPPFLAGS
     AC_MSG_RESULT([$have_cuda])])
])

# BNY_WITH_CUDA(SOURCE)
# The toolkit's headers, for the device layer: have_cuda, CUDA_CFLAGS, version_cuda, the conditional CUDA. And its compiler,
# for kernels, which are SOURCE: have_nvcc, NVCC_ARCHS, the conditional NVCC; absent_nvcc says why not.
AC_DEFUN([BNY_WITH_CUDA], [
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [CUDA devices: auto, yes, no or the toolkit's directory @<:@auto@:>@])],
    [], [with_cuda=auto])
  AC_ARG_VAR([CUDA_HOME], [directory of the CUDA toolkit, where --with-cuda names none])
  AC_ARG_VAR([NVCC], [CUDA compiler])
  AC_ARG_VAR([CUDA_ARCHS], [architectures of CUDA kernels @<:@"80 90a 100 120"@:>@; those that nvcc does not know are
    left out. native: those of this machine's devices, or 90a where there are none])
  AC_ARG_VAR([CUDA_PTX], [that of CUDA_ARCHS whose kernels also come as PTX, for later devices, such as 100])
  have_cuda=no have_nvcc=no absent_cuda="not found" CUDA_CFLAGS= NVCC_ARCHS=
  AS_CASE([$with_cuda],
    [no], [absent_cuda="not wanted"],
    [auto|yes],
      [nvcc_in_path=`command -v nvcc 2>/dev/null`
       BNY_CUDA_TRY([$CUDA_HOME])
       BNY_CUDA_TRY([${nvcc_in_path%/bin/nvcc}])
       BNY_CUDA_TRY([/usr/local/cuda])
       BNY_CUDA_TRY([/usr])],
    [BNY_CUDA_TRY([$with_cuda])])
  AS_IF([test $have_cuda = no], [AS_CASE([$with_cuda], [auto|no], [],
    [AC_MSG_ERROR([--with-cuda=$with_cuda: $absent_cuda. Install the CUDA toolkit, 12.4 or newer, or give
      --with-cuda=DIR])])])
  absent_nvcc="no nvcc"
  AS_IF([test $have_cuda = yes],
    [AC_PATH_PROG([NVCC], [nvcc], [], [$cuda_home/bin$PATH_SEPARATOR$PATH])
     AS_IF([test -n "$NVCC"], [BNY_CHECK_NVCC([$1])])])
  AC_SUBST([CUDA_CFLAGS])
  AC_SUBST([NVCC_ARCHS])
  CUDA_KERNELS=`echo $cuda_archs`
  AC_SUBST([CUDA_KERNELS])
  AM_CONDITIONAL([CUDA], [test $have_cuda = yes])
  AM_CONDITIONAL([NVCC], [test $have_nvcc = yes])
  AM_CONDITIONAL([NVCC_IMAGE], [test $have_nvcc = yes && test "x$image" != xcompute])
])

# BNY_CUDA_NATIVE
# Sets CUDA_ARCHS to the architectures of this machine's devices. Where nvcc does not know one, it may know the first of
# its generation, whose images run there as well. A machine without devices makes PTX for its tests. Its library has no
# kernels for devices, since ptxas takes most of the time.
AC_DEFUN([BNY_CUDA_NATIVE], [
  AC_MSG_CHECKING([for the CUDA devices of this machine])
  CUDA_ARCHS=
  capabilities=`nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null`
  for arch in `AS_ECHO(["$capabilities"]) | sed -n 's/^\(@<:@0-9@:>@*\)@<:@.@:>@\(@<:@0-9@:>@\)$/\1\2/p' | sort -u`; do
    AS_IF([test "$arch" -lt 80], [continue])
    AS_CASE([" "`echo $known_archs`" "], [*" sm_$arch "*], [], [arch=${arch%?}0])
    AS_CASE([" $CUDA_ARCHS "], [*" $arch "*], [], [CUDA_ARCHS="$CUDA_ARCHS $arch"])
  done
  AC_MSG_RESULT([${CUDA_ARCHS:-none}])
  AS_IF([test -z "$CUDA_ARCHS"], [CUDA_ARCHS=90a image=compute])
])

# BNY_CHECK_NVCC(SOURCE)
# have_nvcc if nvcc compiles what kernels use and older ones lack, for the architectures of CUDA_ARCHS that it knows; that
# of CUDA_PTX is also there as PTX, which the driver compiles for devices later than all of them.
AC_DEFUN([BNY_CHECK_NVCC], [
  cuda_archs=
  known_archs=`"$NVCC" --list-gpu-code 2>/dev/null`
  image=sm
  AS_IF([test "x$CUDA_ARCHS" = xnative], [BNY_CUDA_NATIVE])
  ptx=$CUDA_PTX
  AS_IF([test -z "$ptx"], [AS_CASE([$known_archs], [*sm_100*], [ptx=100], [ptx=90])])
  for arch in ${CUDA_ARCHS:-80 90a 100 120}; do
    # Those with a letter are known where those without are.
    AS_CASE([" "`echo $known_archs`" "], [*" sm_${arch%@<:@a-z@:>@} "*],
      [# Some kernels are for 90a, and the library expects them on devices of 9.0.
       code=$arch
       AS_IF([test "$arch" = 90], [code=90a])
       cuda_archs="$cuda_archs ${image}_$code"
       NVCC_ARCHS="$NVCC_ARCHS -gencode arch=compute_$code,code=${image}_$code"
       AS_IF([test "$arch" = "$ptx" && test $image = sm],
         [cuda_archs="$cuda_archs compute_$arch"
          AS_IF([test "$code" = "$arch"],
            [NVCC_ARCHS="${NVCC_ARCHS%sm_$code}@<:@sm_$code,compute_$arch@:>@"],
            [NVCC_ARCHS="$NVCC_ARCHS -gencode arch=compute_$arch,code=compute_$arch"])])])
  done
  AC_MSG_CHECKING([whether $NVCC compiles])
  cat >conftest.cu <<\_ACEOF
__global__ void kernel(unsigned long long *p) {
  asm volatile("{ .reg .b128 q; mov.b128 q, {%1, %1}; st.relaxed.sys.global.b128 [[%0]], q; }" ::"l"(p), "l"(0ull));
}
_ACEOF
  # Drivers of CUDA 12 before release 550 do not read the smallest files, those of CUDA 13 all do.
  AS_CASE([$image,$version_cuda], [compute,* | *,12.*], [smaller=], [smaller=--compress-mode=size])
  for option in $smaller ""; do
    AS_IF([test $have_nvcc = no && test -n "$cuda_archs" &&
        "$NVCC" -fatbin $option $NVCC_ARCHS -o conftest.fatbin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
      [have_nvcc=yes NVCC_ARCHS="$option$NVCC_ARCHS"])
  done
  AS_IF([test $have_nvcc = no], [absent_nvcc="$NVCC does not work, or for none of $CUDA_ARCHS: see config.log"])
  rm -f conftest.cu conftest.fatbin
  AC_MSG_RESULT([$have_nvcc])
  # Kernels are not sanitized, and take long.
  AS_IF([test "x$enable_sanitizer" != xno], [have_nvcc=no absent_nvcc="a build with sanitizers"])
  AS_IF([test ! -e "$srcdir/$1"], [have_nvcc=no absent_nvcc="no $1"])
])
