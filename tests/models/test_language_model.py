from luthier.models import LanguageModel


def test_the_decoder_is_a_language_model(make_decoder):
    assert isinstance(make_decoder(), LanguageModel)


def test_what_lacks_a_method_is_not():
    class Incomplete:
        def hidden(self, inputs_BL): ...

        def logits(self, hidden_BLD): ...

    assert not isinstance(Incomplete(), LanguageModel)
