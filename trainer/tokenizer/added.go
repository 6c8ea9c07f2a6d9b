package tokenizer

type addedTokens struct{}

type piece struct {
	id   int32 // NoID: text between added tokens
	text string
}

func (a *addedTokens) splitRaw(text string) []piece        { return []piece{{NoID, text}} }
func (a *addedTokens) splitNormalized(text string) []piece { return []piece{{NoID, text}} }
