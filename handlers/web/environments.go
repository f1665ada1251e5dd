package web

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/internal/environment"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/internal/workspace"
	"managoat/views"
)

var environmentFields = []string{"name", "packages.apt", "packages.npm", "packages.pip", "repositories", "env_vars", "setup_script",
	"setup_timeout_seconds", "networking_type", "networking_config.allowed_hosts"}

// ListEnvironments answers GET /environments.
func (w *Console) ListEnvironments(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	all, err := w.Environments.List(ctx, a, list(c))
	if err != nil {
		return err
	}
	spaces, err := w.workspacesOf(ctx, a)
	if err != nil {
		return err
	}
	p := views.EnvironmentsPage{Page: w.page(c, "Environments", "environments"), Pager: views.Pager{Older: older(c, all.Next)}}
	for _, e := range all.Items {
		p.Rows = append(p.Rows, views.EnvironmentRow{Name: environmentLink(e), Holds: holds(e), Network: network(e), Workspaces: len(spaces[e.ID]), UpdatedAt: e.UpdatedAt})
	}
	return html(c, http.StatusOK, views.Environments(p))
}

func environmentLink(e environment.Environment) views.Link {
	return views.Link{Name: e.Name, URL: "/environments/" + e.ID.String()}
}

// workspacesOf are the account's workspaces by the environment they are built from.
func (w *Console) workspacesOf(ctx context.Context, a tenant.Actor) (map[uuid.UUID][]workspace.Workspace, error) {
	all, err := w.Workspaces.List(ctx, a, false, input.Page{Limit: choices})
	by := map[uuid.UUID][]workspace.Workspace{}
	for _, s := range all.Items {
		if s.EnvironmentID != nil {
			by[*s.EnvironmentID] = append(by[*s.EnvironmentID], s)
		}
	}
	return by, err
}

// holds says in a line what an environment holds.
func holds(e environment.Environment) string {
	var parts, packages []string
	for _, m := range []struct {
		name string
		n    int
	}{{"apt", len(e.Packages.Apt)}, {"npm", len(e.Packages.Npm)}, {"pip", len(e.Packages.Pip)}} {
		if m.n > 0 {
			packages = append(packages, fmt.Sprintf("%s %d", m.name, m.n))
		}
	}
	if len(packages) > 0 {
		parts = append(parts, strings.Join(packages, ", "))
	}
	switch n := len(e.Repositories); n {
	case 0:
	case 1:
		parts = append(parts, "1 repository")
	default:
		parts = append(parts, fmt.Sprintf("%d repositories", n))
	}
	if e.SetupScript != "" {
		parts = append(parts, "setup script")
	}
	if e.SecretCount > 0 {
		parts = append(parts, views.Plural(e.SecretCount, "secret"))
	}
	if len(parts) == 0 {
		return "nothing but the base system"
	}
	return strings.Join(parts, " · ")
}

func network(e environment.Environment) string {
	if e.NetworkingType != "limited" {
		return e.NetworkingType
	}
	return "limited, " + views.Plural(len(e.NetworkingConfig.AllowedHosts), "host")
}

// NewEnvironment shows the empty form: GET /environments/new.
func (w *Console) NewEnvironment(c echo.Context) error {
	form := environmentForm(environment.New())
	return html(c, http.StatusOK, views.EnvironmentNew(views.EnvironmentFormPage{Page: w.page(c, "New environment", "environments"), Form: form}))
}

// CreateEnvironment keeps a new environment: POST /environments.
func (w *Console) CreateEnvironment(c echo.Context) error {
	form := sentEnvironment(c)
	in, err := environmentInput(form)
	if err == nil {
		var made environment.Environment
		if made, err = w.Environments.Create(c.Request().Context(), actor(c), in); err == nil {
			return see(c, "/environments/"+made.ID.String(), "Created the environment "+made.Name+".")
		}
	}
	errs, status, err := formErrors(err, environmentFields...)
	if err != nil {
		return err
	}
	form.Errors = errs
	return html(c, status, views.EnvironmentNew(views.EnvironmentFormPage{Page: w.page(c, "New environment", "environments"), Form: form}))
}

// ShowEnvironment answers GET /environments/{id}.
func (w *Console) ShowEnvironment(c echo.Context) error {
	return w.environment(c, http.StatusOK, func(*views.EnvironmentPage) {})
}

// environment shows an environment as it is, with what edit changes on the page.
func (w *Console) environment(c echo.Context, status int, edit func(*views.EnvironmentPage)) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	e, err := w.Environments.Get(ctx, a, at)
	if err != nil {
		return err
	}
	secrets, err := w.Environments.ListSecrets(ctx, a, at)
	if err != nil {
		return err
	}
	spaces, err := w.workspacesOf(ctx, a)
	if err != nil {
		return err
	}
	base := "/environments/" + at.String()
	p := views.EnvironmentPage{Page: w.page(c, e.Name, "environments"), URL: base, Name: e.Name, UpdatedAt: e.UpdatedAt,
		Form: environmentForm(e.Input), Secrets: secretsPanel(base, secrets)}
	for _, s := range spaces[at] {
		p.Workspaces = append(p.Workspaces, views.Link{Name: s.Name, URL: "/workspaces/" + s.ID.String()})
	}
	edit(&p)
	return html(c, status, views.Environment(p))
}

// UpdateEnvironment saves the form: POST /environments/{id}.
func (w *Console) UpdateEnvironment(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	form := sentEnvironment(c)
	in, err := environmentInput(form)
	if err == nil {
		var made environment.Environment
		made, err = w.Environments.Update(c.Request().Context(), actor(c), at, func(present *environment.Input) error {
			in.Metadata = present.Metadata // the form does not show it
			*present = in
			return nil
		})
		if err == nil {
			return see(c, "/environments/"+at.String(), "Saved the environment "+made.Name+".")
		}
	}
	errs, status, err := formErrors(err, environmentFields...)
	if err != nil {
		return err
	}
	form.Errors = errs
	return w.environment(c, status, func(p *views.EnvironmentPage) { p.Form = form })
}

// DeleteEnvironment removes an environment: POST /environments/{id}/delete.
func (w *Console) DeleteEnvironment(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	e, err := w.Environments.Get(ctx, a, at)
	if err != nil {
		return err
	}
	status, errs := http.StatusUnprocessableEntity, checkName(c, e.Name)
	if errs == nil {
		if err = w.Environments.Delete(ctx, a, at); err == nil {
			return see(c, "/environments", "Deleted the environment "+e.Name+".")
		}
		if errs, status, err = formErrors(err, "confirm"); err != nil {
			return err
		}
		errs["confirm"] = errs[""]
	}
	return w.environment(c, status, func(p *views.EnvironmentPage) { p.DeleteErrors = errs })
}

// PutEnvironmentSecret saves a secret: POST /environments/{id}/secrets.
func (w *Console) PutEnvironmentSecret(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	key := c.FormValue("key")
	_, err = w.Environments.PutSecret(c.Request().Context(), actor(c), at, environment.SecretInput{Key: key, Value: secret.New(input.Lines(c.FormValue("value")))})
	if err == nil {
		return see(c, "/environments/"+at.String()+"#secrets", "Saved the secret "+key+".")
	}
	errs, status, err := formErrors(err, "key", "value")
	if err != nil {
		return err
	}
	return w.environment(c, status, func(p *views.EnvironmentPage) { p.Secrets.Key, p.Secrets.Errors = key, errs })
}

// DeleteEnvironmentSecret removes a secret: POST /environments/{id}/secrets/{secret}/delete.
func (w *Console) DeleteEnvironmentSecret(c echo.Context) error {
	at, err := id(c, "id")
	if err == nil {
		err = w.Environments.DeleteSecret(c.Request().Context(), actor(c), at, c.Param("secret"))
	}
	if err != nil {
		return err
	}
	return see(c, "/environments/"+at.String()+"#secrets", "Deleted the secret "+c.Param("secret")+".")
}

// environmentForm shows an input as text.
func environmentForm(in environment.Input) views.EnvironmentForm {
	f := views.EnvironmentForm{Name: in.Name, Apt: strings.Join(in.Packages.Apt, "\n"), Npm: strings.Join(in.Packages.Npm, "\n"), Pip: strings.Join(in.Packages.Pip, "\n"),
		Networking: in.NetworkingType, AllowedHosts: strings.Join(in.NetworkingConfig.AllowedHosts, "\n"), SetupScript: in.SetupScript,
		SetupTimeout: strconv.Itoa(in.SetupTimeoutSeconds)}
	for _, name := range slices.Sorted(maps.Keys(in.EnvVars)) {
		f.EnvVars += name + "=" + quoted(in.EnvVars[name]) + "\n"
	}
	for _, r := range in.Repositories {
		f.Repositories = append(f.Repositories, views.RepositoryForm{URL: r.URL, MountPath: r.MountPath, Ref: r.Ref, SecretKey: r.SecretKey})
	}
	f.Repositories = append(f.Repositories, views.RepositoryForm{}) // to fill in without JavaScript
	return f
}

// sentEnvironment reads the form as it was sent. Rows without a URL are left out, so that the numbers of the others are
// those of the input.
func sentEnvironment(c echo.Context) views.EnvironmentForm {
	f := views.EnvironmentForm{Name: c.FormValue("name"), Apt: c.FormValue("packages.apt"), Npm: c.FormValue("packages.npm"), Pip: c.FormValue("packages.pip"),
		EnvVars: c.FormValue("env_vars"), Networking: c.FormValue("networking_type"), AllowedHosts: c.FormValue("networking_config.allowed_hosts"),
		SetupScript: input.Lines(c.FormValue("setup_script")), SetupTimeout: c.FormValue("setup_timeout_seconds")}
	values, err := c.FormParams()
	if err != nil {
		return f
	}
	nth := func(name string, i int) string {
		if all := values["repositories."+name]; i < len(all) {
			return strings.TrimSpace(all[i])
		}
		return ""
	}
	for i := range values["repositories.url"] {
		r := views.RepositoryForm{URL: nth("url", i), MountPath: nth("mount_path", i), Ref: nth("ref", i), SecretKey: nth("secret_key", i)}
		if r.URL != "" {
			f.Repositories = append(f.Repositories, r)
		}
	}
	f.Repositories = append(f.Repositories, views.RepositoryForm{})
	return f
}

// environmentInput makes the input that a form means. What text cannot mean is a validation error of its field.
func environmentInput(f views.EnvironmentForm) (environment.Input, error) {
	var v refusal.Validation
	in := environment.New()
	in.Name = f.Name
	in.Packages = environment.Packages{Apt: lines(f.Apt), Npm: lines(f.Npm), Pip: lines(f.Pip)}
	in.NetworkingType = orElse(f.Networking, in.NetworkingType)
	in.NetworkingConfig.AllowedHosts = lines(f.AllowedHosts)
	in.SetupScript = f.SetupScript
	timeout, err := strconv.Atoi(strings.TrimSpace(f.SetupTimeout))
	if err != nil {
		v.Add("setup_timeout_seconds", "must be a whole number of seconds")
	}
	in.SetupTimeoutSeconds = timeout
	in.EnvVars = map[string]string{}
	for _, line := range lines(f.EnvVars) {
		name, value, ok := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			v.Add("env_vars", "must be KEY=value in every line")
			continue
		}
		if in.EnvVars[name], err = unquoted(strings.TrimSpace(value)); err != nil {
			v.Add("env_vars", "holds a value for %s whose quotes do not end: write \"…\" as in JSON, or no quotes", name)
		}
	}
	for _, r := range f.Repositories {
		if r.URL != "" {
			in.Repositories = append(in.Repositories, environment.Repository{URL: r.URL, MountPath: r.MountPath, Ref: r.Ref, SecretKey: r.SecretKey})
		}
	}
	if own := v.Err(); own != nil {
		if timeout == 0 {
			in.SetupTimeoutSeconds = environment.DefaultSetupTimeout
		}
		return in, together(own, in.Validate())
	}
	return in, nil
}

// together are the form's own complaints and those of the rules.
func together(all ...error) error {
	var v refusal.Validation
	for _, err := range all {
		for field, problems := range refusal.FieldErrors(err) {
			for _, p := range problems {
				v.Add(field, "%s", p)
			}
		}
	}
	return v.Err()
}

// A value with line ends, quotes or outer blanks stands in quotes, as in JSON, so that one line is one variable.

func quoted(value string) string {
	if value != strings.TrimSpace(value) || strings.ContainsAny(value, "\r\n\"") {
		return strconv.Quote(value)
	}
	return value
}

func unquoted(text string) (string, error) {
	if !strings.HasPrefix(text, `"`) {
		return text, nil
	}
	value, err := strconv.Unquote(text)
	if err != nil {
		return "", errors.New("unbalanced quotes")
	}
	return value, nil
}
