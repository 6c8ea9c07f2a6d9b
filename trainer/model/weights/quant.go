package weights

import "encoding/binary"

// Block layouts of the GGUF quantisations (little endian; d and m are binary16). The arithmetic follows the format:
// products d*q are exact in float32, and only the addition of a minimum rounds.

// blocks32 calls f with every block of 32 values.
func blocks32(dst []float32, src []byte, blockBytes int, f func(v []float32, b []byte)) {
	for i := 0; i < len(dst)/32; i++ {
		f(dst[32*i:32*i+32], src[blockBytes*i:blockBytes*(i+1)])
	}
}

func half(b []byte) float32 { return halfToFloat(binary.LittleEndian.Uint16(b)) }

// decodeQ8_0: d, 32 signed bytes q; value = d*q.
func decodeQ8_0(dst []float32, src []byte) {
	blocks32(dst, src, 34, func(v []float32, b []byte) {
		d := half(b)
		for j, q := range b[2:34] {
			v[j] = d * float32(int8(q))
		}
	})
}

// decodeQ4_0: d, 16 bytes; low nibbles are values 0-15, high ones 16-31; value = d*(q-8).
func decodeQ4_0(dst []float32, src []byte) {
	blocks32(dst, src, 18, func(v []float32, b []byte) {
		d := half(b)
		for j, q := range b[2:18] {
			v[j] = d * float32(int(q&15)-8)
			v[j+16] = d * float32(int(q>>4)-8)
		}
	})
}

// decodeQ4_1: d, m, 16 bytes as in Q4_0; value = d*q + m.
func decodeQ4_1(dst []float32, src []byte) {
	blocks32(dst, src, 20, func(v []float32, b []byte) {
		d, m := half(b), half(b[2:])
		for j, q := range b[4:20] {
			v[j] = float32(d*float32(q&15)) + m
			v[j+16] = float32(d*float32(q>>4)) + m
		}
	})
}

// decodeQ5_0: d, 32 high bits, 16 bytes as in Q4_0; value = d*(q-16).
func decodeQ5_0(dst []float32, src []byte) {
	blocks32(dst, src, 22, func(v []float32, b []byte) {
		d, high := half(b), binary.LittleEndian.Uint32(b[2:])
		for j, q := range b[6:22] {
			v[j] = d * float32(int(uint32(q&15)|high>>j&1<<4)-16)
			v[j+16] = d * float32(int(uint32(q>>4)|high>>(j+16)&1<<4)-16)
		}
	})
}

// decodeQ5_1: d, m, 32 high bits, 16 bytes as in Q4_0; value = d*q + m.
func decodeQ5_1(dst []float32, src []byte) {
	blocks32(dst, src, 24, func(v []float32, b []byte) {
		d, m, high := half(b), half(b[2:]), binary.LittleEndian.Uint32(b[4:])
		for j, q := range b[8:24] {
			v[j] = float32(d*float32(uint32(q&15)|high>>j&1<<4)) + m
			v[j+16] = float32(d*float32(uint32(q>>4)|high>>(j+16)&1<<4)) + m
		}
	})
}

// decodeMXFP4Blocks: a power of two as of decodeE8M0, 16 bytes as in Q4_0; value = power * the FP4 value of a nibble.
func decodeMXFP4Blocks(dst []float32, src []byte) {
	var power [1]float32
	blocks32(dst, src, 17, func(v []float32, b []byte) {
		decodeE8M0(power[:], b[:1])
		for j, q := range b[1:17] {
			v[j] = power[0] * e2m1[q&15]
			v[j+16] = power[0] * e2m1[q>>4]
		}
	})
}

// decodeK returns the decoder of Q4_K and, with a fifth bit, of Q5_K: d, dmin, 12 bytes of 6-bit scales and minima for 8
// groups of 32, 32 bytes of high bits in Q5_K, 128 bytes of nibbles; value = d*scale*q - dmin*min. Each run of 32 bytes of
// nibbles holds group 2i in the low and group 2i+1 in the high nibbles. In each byte of high bits, bit g belongs to group g.
func decodeK(fifth bool) func(dst []float32, src []byte) {
	size := 144
	if fifth {
		size = 176
	}
	return func(dst []float32, src []byte) {
		for i := 0; i < len(dst)/256; i++ {
			v, b := dst[256*i:256*i+256], src[size*i:size*i+size]
			d, dmin, packed, high, quants := half(b), half(b[2:]), b[4:16], b[16:48], b[size-128:]
			for g := range 8 {
				scale, minimum := scaleMinK4(packed, g)
				s, m := d*float32(scale), dmin*float32(minimum)
				shift := 4 * (g & 1)
				for j, q := range quants[32*(g/2) : 32*(g/2)+32] {
					q = q >> shift & 15
					if fifth {
						q |= high[j] >> g & 1 << 4
					}
					v[32*g+j] = float32(s*float32(q)) - m
				}
			}
		}
	}
}

// scaleMinK4 unpacks the 6-bit scale and minimum of group g. Groups 0-3 are in the low 6 bits of bytes g and g+4. Groups
// 4-7 take 4 bits from byte g+4 and their top 2 bits from the high bits of the bytes of groups 0-3.
func scaleMinK4(p []byte, g int) (scale, minimum byte) {
	if g < 4 {
		return p[g] & 63, p[g+4] & 63
	}
	return p[g+4]&15 | p[g-4]>>6<<4, p[g+4]>>4 | p[g]>>6<<4
}

// decodeQ6_K: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, d; value = d*scale*(q-32), with one
// scale for every 16 values. Each half of 128 values interleaves four runs of 32.
func decodeQ6_K(dst []float32, src []byte) {
	for i := 0; i < len(dst)/256; i++ {
		v, b := dst[256*i:256*i+256], src[210*i:210*i+210]
		d := half(b[208:])
		for h := range 2 {
			low, high, scales := b[64*h:64*h+64], b[128+32*h:160+32*h], b[192+8*h:200+8*h]
			for j := range 32 {
				for run := range 4 {
					nibble := low[j+32*(run&1)] >> (4 * (run >> 1)) & 15
					q := int(nibble|high[j]>>(2*run)&3<<4) - 32
					scale := d * float32(int8(scales[2*run+j/16]))
					v[128*h+32*run+j] = scale * float32(q)
				}
			}
		}
	}
}
