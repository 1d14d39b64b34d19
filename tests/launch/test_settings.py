import pytest

from luthier.errors import BadInput
from luthier.graph import entry_points
from luthier.launch import EngineSetting, Slurm, choose, of_site, user_file


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return the folder of a project, with a home of its own for the user's settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "luthier").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def _write(path, text):
    path.write_text(text)
    return str(path)


def _refusal(*arguments, **options):
    with pytest.raises(BadInput) as caught:
        choose(*arguments, **options)
    return [str(problem) for problem in caught.value.problems]


def test_the_command_line_alone(project):
    chosen = choose("slurm:nodes=2,partition=gpu,setup=['module load a,b'],memory=64G", project)
    assert (chosen.name, chosen.path) == ("slurm", "luthier.launch.slurm.Slurm")
    assert chosen.make() == Slurm(nodes=2, partition="gpu", setup=["module load a,b"], memory="64G")


def test_text_stays_text_where_it_reads_as_a_number(project):
    assert choose("slurm:account=123", project).make().account == "123"


def test_text_stays_text_in_an_entry_of_a_mapping(project):
    words = "kubernetes:image=jax,node_selector.zone=1,node_selector.rack=b,limits.cpu=16"
    made = choose(words, project).make()
    assert (made.node_selector, made.limits) == ({"zone": "1", "rack": "b"}, {"cpu": 16})
    assert choose("slurm:options.exclusive=true", project).make().options == {"exclusive": "true"}


def test_an_entry_of_a_setting_that_is_not_a_mapping_is_a_problem(project):
    with pytest.raises(BadInput, match=r"nodes is \{'x': 1\}, and not "):
        choose("slurm:nodes=2,nodes.x=1", project)


def test_the_nearer_file_counts_and_each_setting_has_its_origin(project, tmp_path):
    user = _write(user_file(), '[slurm]\naccount = "lab"\nnodes = 4\noptions = {qos = "low"}\n')
    own = _write(project / "launch.toml", "[slurm]\nnodes = 8\n")
    chosen = choose("slurm:options.constraint=a100,partition=gpu", project)
    assert chosen.settings == {
        "account": EngineSetting("lab", f"[slurm] in {user}"),
        "nodes": EngineSetting(8, f"[slurm] in {own}"),
        "options": EngineSetting({"qos": "low", "constraint": "a100"}, "--on"),
        "partition": EngineSetting("gpu", "--on"),
    }
    assert chosen.lines()[1] == f"nodes = 8  [[slurm] in {own}]"


def test_a_site_stands_over_its_engine(project):
    _write(project / "launch.toml", '[slurm]\nnodes = 2\n[big]\nengine = "slurm"\nnodes = 16\n')
    assert choose("big", project).make() == Slurm(nodes=16)
    assert choose("big:nodes=3", project).make() == Slurm(nodes=3)
    assert of_site("slurm", project).make() == Slurm(nodes=2)


def test_slices_are_settings_of_sweeps_only(project):
    chosen = choose("slurm:nodes=2,slices=4,host=login1", project, of_sweep=True)
    assert {name: s.value for name, s in chosen.slices.items()} == {"slices": 4, "host": "login1"}
    assert set(chosen.settings) == {"nodes"}
    assert _refusal("slurm:slices=4", project) == [
        "slices is for sweeps [set by --on]; leave it out: a single run is one group"
    ]


def test_an_unknown_engine(project):
    user, own = user_file(), project / "launch.toml"
    assert _refusal("slurn:nodes=2", project) == [
        "there is no engine or site 'slurn' [set by --on]; did you mean slurm?; there are "
        f"kubernetes, local, ray, slurm, tpu-vm; sites are tables of {user} or {own}"
    ]


def test_all_problems_are_reported_at_once(project):
    path = _write(
        project / "launch.toml",
        'nodes = 2\n[slurm]\nnods = 3\ngpus_per_node = "eight"\n[bg]\nnodes = 2\n',
    )
    assert _refusal("slurm:nodes=two,partition,cpus_per_proces=4", project) == [
        f"nodes is not in a table [set by {path}]; write [slurm] above it",
        f'[bg] is not an engine [set by {path}]; name its engine: engine = "slurm"',
        f"slurm has no setting 'nods' [set by [slurm] in {path}]; did you mean nodes?",
        f"gpus_per_node is 'eight', and not an int or None [set by [slurm] in {path}]",
        "nodes is 'two', and not an int [set by --on]",
        "cannot read 'partition' [set by --on]; write --on slurm:nodes=2,partition=gpu",
        "slurm has no setting 'cpus_per_proces' [set by --on]; did you mean "
        "cpus_per_process or gpus_per_node?",
    ]


def test_a_file_that_cannot_be_read(project):
    path = _write(project / "launch.toml", "[slurm\n")
    (line,) = _refusal("slurm", project)
    assert line.startswith(f"cannot read {path}: ")


def test_a_setting_without_a_default_is_asked_for(project):
    assert _refusal("tpu-vm:tpu=pod", project) == [
        "tpu-vm needs the setting 'zone' [set by --on]; write --on tpu-vm:zone=..."
    ]


def test_all_problems_of_the_files_are_reported_where_only_they_count(project):
    path = _write(project / "launch.toml", '[slurm]\nnods = 3\ngpus_per_node = "eight"\n')
    with pytest.raises(BadInput) as caught:
        of_site("slurm", project)
    assert [str(problem) for problem in caught.value.problems] == [
        f"slurm has no setting 'nods' [set by [slurm] in {path}]; did you mean nodes?",
        f"gpus_per_node is 'eight', and not an int or None [set by [slurm] in {path}]",
    ]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that lays out a distribution with an engine."""
    cached = (entry_points.extensions, entry_points.targets, entry_points.packages)

    def lay_out(name, target):
        facts = tmp_path / "site" / f"{name}-1.0.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(f"[luthier.engines]\npbs = {target}\n")

    monkeypatch.syspath_prepend(tmp_path / "site")
    for function in cached:
        function.cache_clear()
    yield lay_out
    for function in cached:
        function.cache_clear()


def test_an_engine_that_two_distributions_have_is_not_chosen_by_chance(project, install):
    install("first", "first:Engine")
    install("second", "second:Engine")
    assert _refusal("pbs", project) == [
        "the engine 'pbs' is in several distributions: first.Engine, second.Engine "
        "[set by --on]; uninstall one of them"
    ]
