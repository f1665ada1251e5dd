package testworld

import (
	"bytes"
	"crypto/subtle"
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// commitTime is every commit's time, so that equal trees make equal commits.
const commitTime = "2024-05-06T07:08:09Z"

// Git is a git host over HTTPS, served by git's own http-backend.
type Git struct {
	*service
	report  Reporter
	root    string
	backend string // path of git-http-backend

	mu     sync.Mutex
	tokens map[string]string // repository name → token it asks for
}

func (w *World) openGit() error {
	root, err := w.subdir("git")
	if err != nil {
		return err
	}
	execPath, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return fmt.Errorf("git --exec-path: %w", err)
	}
	service, listener, err := w.listen(GitName, true)
	if err != nil {
		return err
	}
	w.Git = &Git{
		service: service,
		report:  w.report,
		root:    root,
		backend: filepath.Join(strings.TrimSpace(string(execPath)), "git-http-backend"),
		tokens:  map[string]string{},
	}
	w.serve(listener, w.Git)
	return nil
}

// ServeHTTP hands a request to git http-backend. A repository with a token answers 401 without it; with it (as
// the password of any user) it takes pushes too.
func (g *Git) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	g.record(r)
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	name = strings.TrimSuffix(name, ".git")
	g.mu.Lock()
	token := g.tokens[name]
	g.mu.Unlock()
	env := []string{"GIT_PROJECT_ROOT=" + g.root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "HOME=" + g.root}
	if token != "" {
		user, password, _ := r.BasicAuth()
		if subtle.ConstantTimeCompare([]byte(password), []byte(token)) != 1 {
			rw.Header().Set("WWW-Authenticate", `Basic realm="`+GitName+`"`)
			http.Error(rw, "the repository needs a token", http.StatusUnauthorized)
			return
		}
		env = append(env, "REMOTE_USER="+user)
	}
	var stderr bytes.Buffer
	handler := &cgi.Handler{Path: g.backend, Dir: g.root, Env: env, Stderr: &stderr}
	handler.ServeHTTP(rw, r)
}

// Repository is a bare repository of the host.
type Repository struct {
	Name string
	URL  string
	Dir  string // its git directory

	git *Git
}

// Add makes a repository whose branch main holds the files.
func (g *Git) Add(name string, files Files) *Repository {
	g.report.Helper()
	repo := &Repository{Name: name, URL: g.URL + "/" + name + ".git", Dir: filepath.Join(g.root, name+".git"), git: g}
	repo.run(nil, "", "init", "--quiet", "--bare", "--initial-branch=main", repo.Dir)
	repo.Commit("main", "First version", files)
	return repo
}

// Commit adds a commit to a branch with the files added or replaced, and returns its id. A branch that is not
// there yet starts at main.
func (repo *Repository) Commit(branch, message string, files Files) string {
	repo.git.report.Helper()
	index := []string{"GIT_INDEX_FILE=" + filepath.Join(repo.Dir, "index."+strings.ReplaceAll(branch, "/", "-"))}
	parent := repo.resolve(branch)
	if parent == "" {
		parent = repo.resolve("main")
	}
	if parent == "" {
		repo.run(index, "", "read-tree", "--empty")
	} else {
		repo.run(index, "", "read-tree", parent)
	}
	var entries strings.Builder
	for name, content := range files {
		blob := repo.run(nil, content, "hash-object", "-w", "--stdin")
		fmt.Fprintf(&entries, "100%o %s\t%s\n", mode(content), blob, name)
	}
	repo.run(index, entries.String(), "update-index", "--index-info")
	commit := []string{"commit-tree", repo.run(index, "", "write-tree"), "-m", message}
	if parent != "" {
		commit = append(commit, "-p", parent)
	}
	id := repo.run(nil, "", commit...)
	repo.run(nil, "", "update-ref", "refs/heads/"+branch, id)
	return id
}

// Tag names the tip of a branch.
func (repo *Repository) Tag(tag, branch string) {
	repo.git.report.Helper()
	repo.run(nil, "", "tag", tag, "refs/heads/"+branch)
}

// RequireToken makes the host ask for the token, as the password of basic authentication.
func (repo *Repository) RequireToken(token string) {
	repo.git.mu.Lock()
	defer repo.git.mu.Unlock()
	repo.git.tokens[repo.Name] = token
}

// resolve is the commit of a branch, "" if there is none.
func (repo *Repository) resolve(branch string) string {
	return repo.run(nil, "", "for-each-ref", "--format=%(objectname)", "refs/heads/"+branch)
}

// run is git in the repository with more environment and a standard input. It returns what git printed, less
// the line's end.
func (repo *Repository) run(env []string, stdin string, args ...string) string {
	repo.git.report.Helper()
	cmd := exec.Command("git", args...)
	cmd.Env = slices.Concat(os.Environ(), []string{
		"GIT_DIR=" + repo.Dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=Test World", "GIT_AUTHOR_EMAIL=world@" + GitName, "GIT_AUTHOR_DATE=" + commitTime,
		"GIT_COMMITTER_NAME=Test World", "GIT_COMMITTER_EMAIL=world@" + GitName, "GIT_COMMITTER_DATE=" + commitTime,
	}, env)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		repo.git.report.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSuffix(string(out), "\n")
}
