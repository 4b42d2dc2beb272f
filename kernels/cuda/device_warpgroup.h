/* SPDX-License-Identifier: Apache-2.0
 * The warpgroup functions of device.h as inline PTX (wgmma, only on sm_90a). */
#pragma once

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define BNY_WARPGROUPS

/* The wgmma descriptor of a matrix in panels, as the PTX ISA defines it. In units of 16 bytes it holds the address, the
 * stride `apart` of panels, and the stride of eight rows, 1024 bytes. Bit 62 selects the 128-byte swizzle. */
struct bny_group_operand {
  uint64_t descriptor;
};
BNY_DEVICE bny_group_operand bny_group_operand_of(const void *at, uint32_t apart) {
  return {(uint64_t)(bny_shared_address(at) >> 4 & 0x3fff) | (uint64_t)(apart >> 4) << 16 |
          (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62};
}
BNY_DEVICE bny_group_operand bny_group_operand_add(bny_group_operand operand, uint32_t bytes) {
  return {operand.descriptor + (bytes >> 4)};
}

BNY_DEVICE void bny_group_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
BNY_DEVICE void bny_group_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int groups> BNY_DEVICE void bny_group_wait(void) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}

#define BNY_PTX_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BNY_PTX_16(d, i) BNY_PTX_4(d, i), BNY_PTX_4(d, i + 4), BNY_PTX_4(d, i + 8), BNY_PTX_4(d, i + 12)
#define BNY_PTX_64(d, i) BNY_PTX_16(d, i), BNY_PTX_16(d, i + 16), BNY_PTX_16(d, i + 32), BNY_PTX_16(d, i + 48)
#define BNY_PTX_WARPGROUP(type)                                                                                     \
  BNY_DEVICE void bny_group_logits_##type(float *d, bny_group_operand a, bny_group_operand b, bool add) {           \
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %34, 0;"                                                           \
                 " wgmma.mma_async.sync.aligned.m64n64k16.f32." #type "." #type                                     \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                         \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"                 \
                 " %32, %33, p, 1, 1, 0, 0; }"                                                                      \
                 : BNY_PTX_16(d, 0), BNY_PTX_16(d, 16)                                                              \
                 : "l"(a.descriptor), "l"(b.descriptor), "r"((uint32_t)add)                                         \
                 : "memory");                                                                                       \
  }                                                                                                                 \
  BNY_DEVICE void bny_group_values_##type(float *d, const uint32_t *a, bny_group_operand b) {                       \
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0;"                                                             \
                 " wgmma.mma_async.sync.aligned.m64n256k16.f32." #type "." #type                                    \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                         \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                 \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                 \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                 \
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                 \
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                 \
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "     \
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}," \
                 " {%128, %129, %130, %131}, %132, p, 1, 1, 1; }"                                                   \
                 : BNY_PTX_64(d, 0), BNY_PTX_64(d, 64)                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor)                                    \
                 : "memory");                                                                                       \
  }
BNY_PTX_WARPGROUP(bf16)
BNY_PTX_WARPGROUP(f16)
#undef BNY_PTX_WARPGROUP
#undef BNY_PTX_64
#undef BNY_PTX_16
#undef BNY_PTX_4

#endif
