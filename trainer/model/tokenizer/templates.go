package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/jinja"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// Names of chat templates. A chat with functions uses the second if it exists, as in transformers.
const (
	defaultTemplate = "default"
	toolTemplate    = "tool_use"
)

// templateFolder contains further templates, NAME.jinja, in addition to chat_template.jinja.
const templateFolder = "additional_chat_templates"

// maxTemplates is the largest number of templates of a tokenizer.
const maxTemplates = 64

// templates holds the sources of a tokenizer's chat templates by name.
type templates map[string]string

// readTemplateFiles adds chat_template.jinja and additional_chat_templates/ to the files of a folder.
func readTemplateFiles(fsys fs.FS, files map[string][]byte) error {
	list, err := fs.ReadDir(fsys, templateFolder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range list {
		name := path.Join(templateFolder, e.Name())
		if e.IsDir() || !isTemplateFile(name) {
			continue
		}
		if files[name], err = readFile(fsys, name); err != nil {
			return err
		}
	}
	return nil
}

func isTemplateFile(name string) bool {
	dir, file := path.Split(name)
	return dir == templateFolder+"/" && strings.HasSuffix(file, ".jinja") && file != ".jinja"
}

// chatTemplates holds the templates that a chat can use.
type chatTemplates struct {
	plain     *template // nil: none
	withTools *template // for chats with functions; nil: the same as plain
	toolsErr  error     // why withTools cannot be parsed
	printed   string    // the sources; "": none
}

// readTemplates reads the templates of the tokenizer's files.
func readTemplates(files map[string][]byte) (chatTemplates, error) {
	config, err := readObject(files, fileConfig)
	if err != nil {
		return chatTemplates{}, err
	}
	sources, err := templatesOf(files, config)
	if err != nil {
		return chatTemplates{}, err
	}
	if err := foldTemplates(files, sources, config); err != nil {
		return chatTemplates{}, err
	}
	return sources.parse()
}

// templatesOf returns the templates of files. They have priority over the templates of tokenizer_config.json, as in
// transformers, and these over the template of a processor.
func templatesOf(files map[string][]byte, config *ordered.Object) (templates, error) {
	found := templates{}
	for name, text := range files {
		switch {
		case name == fileTemplate:
			found[defaultTemplate] = string(text)
		case isTemplateFile(name):
			found[strings.TrimSuffix(path.Base(name), ".jinja")] = string(text)
		}
	}
	if len(found) == 0 {
		if err := found.read(config); err != nil {
			return nil, withLocation(fileConfig, err)
		}
	}
	if len(found) == 0 { // a model for images may have the template only in its processor's file
		processor, err := readObject(files, fileProcessor)
		if err == nil {
			err = withLocation(fileProcessor, found.read(processor))
		}
		if err != nil {
			return nil, err
		}
	}
	if len(found) > maxTemplates {
		return nil, fmt.Errorf("%d chat templates are more than %d", len(found), maxTemplates)
	}
	return found, nil
}

// read reads chat_template: a template, or a list or an object of templates with names.
func (t templates) read(config *ordered.Object) error {
	v, _ := config.Get("chat_template")
	switch v := v.(type) {
	case nil:
	case string:
		t[defaultTemplate] = v
	case *ordered.Object:
		for name, text := range v.All() {
			source, ok := text.(string)
			if !ok {
				return fmt.Errorf("chat_template: %.60q is of type %s", name, ordered.TypeName(text))
			}
			t[name] = source
		}
	case []any:
		for _, e := range v {
			named, _ := e.(*ordered.Object)
			key, isName := ordered.Value[string](named, "name")
			text, isText := ordered.Value[string](named, "template")
			if !isName || !isText {
				return errors.New("chat_template: want a list of objects with name and template")
			}
			t[key] = text
		}
	default:
		return fmt.Errorf("chat_template is of type %s", ordered.TypeName(v))
	}
	return nil
}

// parse parses the templates that a chat can use. Templates with other names can be chosen in transformers only.
// If there is a default template, an error in tool_use only affects chats with functions.
func (t templates) parse() (c chatTemplates, err error) {
	if source, ok := t[defaultTemplate]; ok {
		if c.plain, err = jinja.Parse(source); err != nil {
			return c, withLocation("chat template", err)
		}
		c.printed = source
	}
	if source, ok := t[toolTemplate]; ok {
		if c.withTools, c.toolsErr = jinja.Parse(source); c.toolsErr != nil && c.plain == nil {
			return c, withLocation("chat template "+toolTemplate, c.toolsErr)
		}
		c.printed += source
	}
	if len(t) > 0 && c.plain == nil && c.withTools == nil {
		return c, fmt.Errorf("chat template: there is no template named %s or %s: %s", defaultTemplate, toolTemplate, strings.Join(t.names(), ", "))
	}
	return c, nil
}

// choose returns the template for a chat with or without functions.
func (c *chatTemplates) choose(tools bool) (*template, error) {
	switch {
	case tools && c.toolsErr != nil:
		return nil, withLocation("chat template "+toolTemplate, c.toolsErr)
	case tools && c.withTools != nil:
		return c.withTools, nil
	case c.plain == nil && c.withTools != nil:
		return nil, fmt.Errorf("chat template: the only one is %s, for chats with tools: add %s", toolTemplate, fileTemplate)
	case c.plain == nil:
		return nil, ErrNoTemplate
	}
	return c.plain, nil
}

// foldTemplates moves templates from additional_chat_templates/ into tokenizer_config.json, where transformers also finds
// them: a checkpoint does not contain folders.
func foldTemplates(files map[string][]byte, sources templates, config *ordered.Object) error {
	folded := false
	for name := range files {
		if isTemplateFile(name) {
			delete(files, name)
			folded = true
		}
	}
	if !folded {
		return nil
	}
	delete(files, fileTemplate)
	list := []any{}
	for _, name := range sources.names() {
		list = append(list, ordered.NewObject("name", name, "template", sources[name]))
	}
	whole := config.Clone()
	whole.Set("chat_template", list)
	indent := "  "
	text, err := ordered.Dumps(whole, ordered.Format{Indent: &indent})
	files[fileConfig] = []byte(text)
	return err
}

func (t templates) names() []string { return slices.Sorted(maps.Keys(t)) }
