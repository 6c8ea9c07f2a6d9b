package arch

import (
	"cmp"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// Tiling is the order of value heads in GGUF files. Folders store all heads of the first key head, then all heads of the second
// one. GGUF files store the first head of each key head, then the second of each. The zero value is the order of folders.
type Tiling struct {
	Groups, Each int64 // number of key heads, and of value heads for each of them
	Size         int64 // rows, or columns, of a value head
	First        int64 // first row of the first value head
	Columns      bool  // the heads are columns, not rows
}

// Stored returns the place in GGUF files of a row, or column, that is at place i in folders. Places before First do not change.
func (t Tiling) Stored(i int64) int64 {
	if t.Groups == 0 || i < t.First {
		return i
	}
	head, within := (i-t.First)/t.Size, (i-t.First)%t.Size
	return t.First + (head%t.Each*t.Groups+head/t.Each)*t.Size + within
}

// tiling returns the order of value heads of the given size that begin at row first.
func (g *GatedDelta) tiling(size, first int) Tiling {
	if g.KeyHeads == 1 || g.KeyHeads == g.ValueHeads {
		return Tiling{}
	}
	return Tiling{Groups: int64(g.KeyHeads), Each: int64(g.ValueHeads / g.KeyHeads), Size: int64(size), First: int64(first)}
}

// NextGGUF returns the number of blocks after the last layer that predict tokens after the next one. They are part of block_count, and they
// are not read.
func NextGGUF(meta map[string]any, c Config) int {
	next := 0
	if c.GatedDelta != nil {
		(&keys{values: meta}).integer(families[c.Family].ggufName()+".nextn_predict_layers", &next)
	}
	return next
}

// gatedDeltaGGUF reads the sizes of gated delta rules, and which layers have one. llama.cpp has one size for key and
// value heads, has no biases of attention in these models, and adds the eps of norms to the squared lengths of keys, too.
func gatedDeltaGGUF(k *keys, c *Config) {
	k.require("ssm.inner_size", "rope.dimension_sections")
	blocks, next, inner := c.Layers, 0, 0
	if k.integer("nextn_predict_layers", &next); next >= max(blocks, 1) {
		k.fail("nextn_predict_layers is %d: must be below block_count %d", next, blocks)
		return
	}
	c.Layers -= next
	g := &GatedDelta{}
	k.read(g.settings())
	k.integer("ssm.inner_size", &inner)
	g.ValueDim, c.GatedDelta, c.AttentionBias = g.KeyDim, g, false
	if g.Width < 2 {
		k.fail("ssm.conv_kernel is %d: must be at least 2", g.Width)
	}
	if inner != g.Values() {
		k.fail("ssm.inner_size is %d: must be ssm.state_size %d times ssm.time_step_rank %d, because key and value heads have one size", inner,
			g.KeyDim, g.ValueHeads)
	}
	if float32(c.RMSEps) != deltaEps {
		k.fail("attention.layer_norm_rms_epsilon is %g: must be %g, which llama.cpp adds to the squared lengths of keys, too",
			float32(c.RMSEps), deltaEps)
	}
	deltaLayersGGUF(k, g, blocks, c.Layers)
	refuseSectionsGGUF(k, "rope.dimension_sections", c)
}

// deltaEps is added to the squared lengths of queries and keys in gated delta rules.
const deltaEps = 1e-6

// deltaLayersGGUF reads which layers have a gated delta rule: those of a list, or all except every
// full_attention_interval-th.
func deltaLayersGGUF(k *keys, g *GatedDelta, blocks, layers int) {
	full := k.interval("full_attention_interval", 4)
	list := slidingPatternGGUF(k, "attention.recurrent_layers", new(int), blocks)
	g.Layers = eachLayer(layers, func(i int) bool { return list != nil && list[i] || list == nil && (i+1)%full != 0 })
}

// refuseSectionsGGUF refuses sections of the rotary embedding with which a plane would not be rotated for text. Plane i belongs to section
// i%3, as long as i is below three times the section's size. For text these three sections have the token's position. Planes of no section
// have position 0.
func refuseSectionsGGUF(k *keys, key string, c *Config) {
	sections, _ := k.values[key].([]int64)
	all, most := int64(0), int64(c.HeadDim)
	for _, size := range sections {
		if size < 0 || size > most-all {
			all = -1
			break
		}
		all += size
	}
	if len(sections) != 4 || all < 0 {
		k.fail("%s is %s: must be four sizes, together at most %d", key, strictjson.Brief(fmt.Sprint(k.values[key])), most)
		return
	}
	for i := range int64(cmp.Or(c.Rope.Dim, c.HeadDim) / 2) {
		if all == 0 || i%all >= 3*sections[i%all%3] {
			k.fail("%s is %v: llama.cpp would not rotate plane %d of text", key, sections, i)
			return
		}
	}
}

// writeGatedDeltaGGUF writes the keys that gatedDeltaGGUF reads and that are not settings.
func writeGatedDeltaGGUF(c Config, set func(key string, value any)) {
	g, planes := c.GatedDelta, cmp.Or(c.Rope.Dim, c.HeadDim)/2
	set("ssm.inner_size", g.Values())
	set("attention.recurrent_layers", g.Layers)
	set("rope.dimension_sections", []int64{int64(planes+2) / 3, int64(planes+1) / 3, int64(planes) / 3, 0})
}
