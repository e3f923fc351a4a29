/* Which kernels this machine can run: what the processor has and the operating system saves.

   This file is compiled for all processors of its kind. */

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef HAS_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(_WIN32)
/* windows.h has other meanings for INT8 and interface. */
__declspec(dllimport) int IsProcessorFeaturePresent(unsigned long feature);
#endif
#endif

/* library.py compares them. */
const char source_hash[] = SOURCE_HASH;
const int64_t interface[] = {sizeof(Linear), sizeof(Norm), sizeof(Layer), sizeof(Stack),
                             sizeof(Batch), sizeof(Sources), sizeof(SearchOptions), sizeof(Found),
                             sizeof(Model), sizeof(Targets), sizeof(RowAttention),
                             sizeof(Residual), sizeof(Activation), sizeof(Softmax), GROUP, SLOTS};

extern const Kernels kernels_plain;
const Kernels *kernels = &kernels_plain;

#if defined(__x86_64__)
extern const Kernels kernels_amx, kernels_avx512, kernels_avxvnni, kernels_avx2;

typedef struct {
    unsigned a, b, c, d;
} Registers;

static Registers cpuid(unsigned leaf, unsigned subleaf)
{
    Registers r = {0, 0, 0, 0};
    if (__get_cpuid_max(0, 0) >= leaf)
        __cpuid_count(leaf, subleaf, r.a, r.b, r.c, r.d);
    return r;
}

static int has(unsigned bits, unsigned wanted)
{
    return (bits & wanted) == wanted;
}

#ifdef HAS_AMX
static int can_use_tiles(void)
{
    const int ask_for_tiles = 0x1023, tile_data = 18; /* arch_prctl: ARCH_REQ_XCOMP_PERM */
    return syscall(SYS_arch_prctl, ask_for_tiles, tile_data) == 0;
}
#endif

/* Return the precisions, a bit for each, in which this machine can run them. */
static int precisions_of(const Kernels *k)
{
    const unsigned osxsave = 1 << 27, fma = 1 << 12;
    Registers basic = cpuid(1, 0), more = cpuid(7, 0), most = {0, 0, 0, 0};
    if (more.a >= 1)
        most = cpuid(7, 1);
    unsigned saved = 0, high;
    if (has(basic.c, osxsave)) /* volatile: or the compiler executes it in any case */
        __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    int avx2 = has(saved, 0x6) && has(basic.c, fma) && has(more.b, 1 << 5);
    int avx512 = avx2 && has(saved, 0xe6) && /* f, dq, bw, vl; vnni */
                 has(more.b, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) && has(more.c, 1 << 11);
    int bf16 = has(most.a, 1 << 5);
    int runs = k == &kernels_plain || (k == &kernels_avx2 && avx2) ||
               (k == &kernels_avx512 && avx512);
#ifdef HAS_AVXVNNI
    runs |= k == &kernels_avxvnni && avx2 && has(most.a, 1 << 4);
#endif
#ifdef HAS_AMX
    runs |= k == &kernels_amx && avx512 && bf16 && has(saved, 3 << 17) &&
            has(more.d, 1 << 22 | 1 << 24 | 1 << 25) && can_use_tiles();
#endif
    return runs ? k->precisions & ~(bf16 ? 0 : 1 << BF16) : 0;
}
#elif defined(__aarch64__)
extern const Kernels kernels_i8mm, kernels_dotprod, kernels_neon;

static int precisions_of(const Kernels *k)
{
    int dotprod = 0, bf16 = 0, i8mm = 0; /* i8mm on Linux only: others measured no gain on Apple's */
#if defined(__linux__)
    dotprod = getauxval(AT_HWCAP) >> 20 & 1;
    i8mm = dotprod && getauxval(AT_HWCAP2) >> 13 & 1;
    bf16 = getauxval(AT_HWCAP2) >> 14 & 1;
#elif defined(__APPLE__)
    size_t size = sizeof dotprod;
    sysctlbyname("hw.optional.arm.FEAT_DotProd", &dotprod, &size, NULL, 0);
    sysctlbyname("hw.optional.arm.FEAT_BF16", &bf16, &size, NULL, 0);
#elif defined(_WIN32)
    dotprod = IsProcessorFeaturePresent(43); /* PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE */
#endif
    int runs = k == &kernels_i8mm ? i8mm : k == &kernels_dotprod ? dotprod : 1;
    return runs ? k->precisions & ~(bf16 ? 0 : 1 << BF16) : 0;
}
#else
static int precisions_of(const Kernels *k)
{
    return k->precisions;
}
#endif

/* The fastest first. */
static const Kernels *const all[] = {
#if defined(__x86_64__)
#ifdef HAS_AMX
    &kernels_amx,
#endif
    &kernels_avx512,
#ifdef HAS_AVXVNNI
    &kernels_avxvnni,
#endif
    &kernels_avx2,
#elif defined(__aarch64__)
    &kernels_i8mm, &kernels_dotprod, &kernels_neon,
#endif
    &kernels_plain,
};

int choose_kernels(const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int precisions = name == NULL || !strcmp(name, all[i]->name) ? precisions_of(all[i]) : 0;
        if (precisions) {
            kernels = all[i];
            return precisions;
        }
    }
    return 0;
}

const Kernels *chosen_kernels(void)
{
    return kernels;
}

const char *kernels_name(void)
{
    return kernels->name;
}
