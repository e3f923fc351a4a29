/* A word of inputs times 16 words of weights, by add_bytes in INT8 and add_halves in BF16. */

INLINE ivec add_products(const int precision, ivec sum, int32_t word, ivec weight)
{
    int32x4_t x = vdupq_n_s32(word);
    for (int i = 0; i < 4; i++)
        if (precision == INT8)
            sum.r[i] = add_bytes(sum.r[i], vreinterpretq_s8_s32(x),
                                 vreinterpretq_s8_s32(weight.r[i]));
#ifdef HAS_BF16
        else if (precision == BF16)
            sum.r[i] = add_halves(sum.r[i], x, weight.r[i]);
#endif
        else
            sum.r[i] = vreinterpretq_s32_f32(
                vfmaq_f32(vreinterpretq_f32_s32(sum.r[i]), vreinterpretq_f32_s32(x),
                          vreinterpretq_f32_s32(weight.r[i])));
    return sum;
}
