package bpe

// Byte-level vocabularies write each byte as a printable character (GPT-2's table): bytes that are printable in Latin-1 as
// themselves, the other 68 as the characters from U+0100 up, in order.
var (
	byteRune = func() (table [256]rune) {
		next := rune(0x100)
		for b := range table {
			if b >= '!' && b <= '~' || b >= 0xa1 && b != 0xad {
				table[b] = rune(b)
				continue
			}
			table[b] = next
			next++
		}
		return table
	}()
	runeByte = func() (table [0x144]int16) { // -1: not in the table
		for i := range table {
			table[i] = -1
		}
		for b, r := range byteRune {
			table[r] = int16(b)
		}
		return table
	}()
)

// ByteRune returns the character that stands for a byte in byte-level text.
func ByteRune(b byte) rune { return byteRune[b] }

// ByteLevelBytes returns the bytes of a token in byte-level text. ok is false if a character is outside the table.
func ByteLevelBytes(token string) (b string, ok bool) {
	out := make([]byte, 0, len(token))
	for _, r := range token {
		if int(r) >= len(runeByte) || runeByte[r] < 0 {
			return "", false
		}
		out = append(out, byte(runeByte[r]))
	}
	return string(out), true
}
