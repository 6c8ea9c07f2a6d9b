package mgrpo

import (
	"crypto/sha256"
	"encoding/binary"
)

// Philox4x32 computes the Philox4x32-10 block function of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011): ten rounds, with word 0 of counter and key first.
func Philox4x32(counter [4]uint32, key [2]uint32) [4]uint32 {
	const m0, m1, w0, w1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
	for round := range 10 {
		if round > 0 {
			key[0] += w0
			key[1] += w1
		}
		p0, p1 := uint64(m0)*uint64(counter[0]), uint64(m1)*uint64(counter[2])
		counter = [4]uint32{
			uint32(p1>>32) ^ counter[1] ^ key[0], uint32(p1),
			uint32(p0>>32) ^ counter[3] ^ key[1], uint32(p0),
		}
	}
	return counter
}

// Bounded draws an unbiased integer in [0, s), s >= 1, by Lemire's rejection method (2019). Draw number t of a key
// depends only on t and not on earlier draws, because a rejection advances only the third counter word. The second
// result is the number of attempts.
func Bounded(key [2]uint32, t uint64, s uint32) (value uint32, attempts int) {
	threshold := -s % s // (2^32 - s) mod s
	for r := uint32(0); ; r++ {
		x := Philox4x32([4]uint32{uint32(t), uint32(t >> 32), r, 0}, key)[0]
		product := uint64(x) * uint64(s)
		if uint32(product) >= threshold {
			return uint32(product >> 32), int(r) + 1
		}
	}
}

// AlignKey returns the Philox key of the alignment draws of one (run, query, rollout, agent). It hashes the UTF-8
// bytes of the strings without Unicode normalisation.
func AlignKey(runSeed uint64, query string, rollout int, agent string) [2]uint32 {
	return hashKey(alignMessage(runSeed, query, rollout, agent))
}

// SampleKey returns the Philox key of the tokens that an agent samples in one conversation of a rollout. root
// identifies the conversation. The counter is the token's position in its trajectory.
func SampleKey(runSeed uint64, step int64, query string, rollout int, agent string, root uint64) [2]uint32 {
	var m message
	m.text("mgrpo.sample.v1")
	m.word(runSeed)
	m.word(uint64(step))
	m.text(query)
	m.word(uint64(rollout))
	m.text(agent)
	m.word(root)
	return hashKey(m)
}

// StreamKey returns the Philox key of a named random stream of a run.
func StreamKey(domain string, seed uint64, name string, index int64) [2]uint32 {
	var m message
	m.text(domain)
	m.word(seed)
	m.text(name)
	m.word(uint64(index))
	return hashKey(m)
}

func alignMessage(runSeed uint64, query string, rollout int, agent string) message {
	var m message
	m.text("mgrpo.align.v1")
	m.word(runSeed)
	m.text(query)
	m.word(uint64(rollout))
	m.text(agent)
	return m
}

// message encodes the hashed fields: a word as 8 bytes little endian, a text as its length and its bytes. Different
// lists of fields have different encodings.
type message []byte

func (m *message) word(v uint64) { *m = binary.LittleEndian.AppendUint64(*m, v) }

func (m *message) text(s string) {
	m.word(uint64(len(s)))
	*m = append(*m, s...)
}

func hashKey(m message) [2]uint32 {
	sum := sha256.Sum256(m)
	return [2]uint32{binary.LittleEndian.Uint32(sum[0:]), binary.LittleEndian.Uint32(sum[4:])}
}
