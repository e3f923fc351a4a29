/* USE_TARGET lets all functions up to END_TARGET use the instructions of a feature. */

#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define USE_TARGET(features) \
    PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define END_TARGET _Pragma("clang attribute pop")
#else
#define USE_TARGET(features) PRAGMA(GCC push_options) PRAGMA(GCC target(features))
#define END_TARGET PRAGMA(GCC pop_options)
#endif
#ifdef __clang__
#define DOTPROD "dotprod,bf16"
#define I8MM "dotprod,bf16,i8mm"
#else
#define DOTPROD "arch=armv8.2-a+dotprod+bf16"
#define I8MM "arch=armv8.2-a+dotprod+bf16+i8mm"
#endif
